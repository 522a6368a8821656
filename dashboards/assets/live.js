// Follows a run that is still written: asks each second, and shows what is new.
(function () {
  const EVERY_MS = 1000;
  let version = null;

  function say(box, { course, still_s }) {
    const words = { running: "live", "standing still": `stands still for ${Math.round(still_s)} s`, ended: "ended" };
    box.textContent = words[course] ?? course;
    box.dataset.course = course;
  }

  async function ask() {
    const box = document.getElementById("course");
    if (!box) {
      setTimeout(ask, EVERY_MS / 4);
      return;
    }
    let state = null;
    try {
      const answer = await fetch(box.dataset.source);
      if (answer.ok) state = await answer.json();
    } catch (error) { /* the server was stopped: what is shown stays */ }
    if (!state) {
      box.textContent = "no answer";
      box.dataset.course = "gone";
      return;
    }
    say(box, state);
    if (version !== null && state.version !== version) renew(state.version);
    version = state.version;
    if (state.course !== "ended") setTimeout(ask, EVERY_MS);
  }

  // The timeline grows in place; other pages are made anew.
  function renew(now) {
    const canvas = document.getElementById("timeline");
    if (canvas) canvas.timeline?.grow();
    else window.dash_clientside.set_props("version", { data: now });
  }

  ask();
})();
