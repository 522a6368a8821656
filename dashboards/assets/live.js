// Follows a run that is still written: asks each second, and shows what is new.
(function () {
  const EVERY_MS = 1000;
  const PAGE_MS = 5000; // a page that is made anew more often cannot be read
  let version = null;
  let course = null;
  let renewed = performance.now();

  function say(box, { course, still_s }) {
    const words = { running: "live", "standing still": `stands still${still_s >= 1 ? ` for ${Math.round(still_s)} s` : ""}`, ended: "ended", "not closed": "record not closed" };
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
    if (version === null || renew(state)) version = state.version;
    course = state.course;
    if (!["ended", "not closed"].includes(state.course)) setTimeout(ask, EVERY_MS);
  }

  // The timeline grows in place. Other pages are made anew now and then, at once where the job has
  // come to stand still or has ended, and not while a part of them is unfolded to be read.
  function renew(state) {
    if (state.version === version) return true;
    const canvas = document.getElementById("timeline");
    const turned = state.course !== course;
    if (canvas) canvas.timeline?.grow();
    else if (!turned && (performance.now() - renewed < PAGE_MS || document.querySelector("#page details[open]"))) return false;
    else window.dash_clientside.set_props("version", { data: state.version });
    renewed = performance.now();
    return true;
  }

  ask();
})();
