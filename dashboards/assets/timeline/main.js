// The timeline page: waits for its canvas and opens the run.

import { Source } from "./data.js";
import { OfflineSource } from "./offline.js";
import { Timeline } from "./timeline.js";

async function boot(canvas) {
  const source = globalThis.ddpOffline ? new OfflineSource(globalThis.ddpOffline) : new Source(canvas.dataset.source);
  try {
    await source.open();
  } catch (error) {
    document.getElementById("timeline-state").textContent = `The run could not be loaded: ${error.message}`;
    return;
  }
  if (!source.meta.ranks.length || !source.meta.spans) {
    document.getElementById("timeline-state").textContent = "This run holds no recorded spans: no step was recorded in detail.";
    return;
  }
  new Timeline(canvas, source).start();
}

// Dash puts the page in after the scripts have run.
function whenThere(id, found) {
  const now = document.getElementById(id);
  if (now) {
    found(now);
    return;
  }
  const observer = new MutationObserver(() => {
    const canvas = document.getElementById(id);
    if (!canvas) return;
    observer.disconnect();
    found(canvas);
  });
  observer.observe(document.body, { childList: true, subtree: true });
}

whenThere("timeline", boot);
