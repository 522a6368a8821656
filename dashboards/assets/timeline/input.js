// Wheel, drag and keys on the canvas. Keys are heard only while the canvas has the focus.

import { GUTTER } from "./layout.js";

const CLICK_PX = 4; // a smaller move is a click

export function listen(canvas, layout, view, actions) {
  let drag = null;

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    view.stop();
    const amount = Math.max(-200, Math.min(200, event.deltaMode === 1 ? event.deltaY * 30 : event.deltaY));
    if (event.altKey) {
      view.scroll += amount * 0.6;
      layout.clampScroll();
    } else if (event.offsetX < GUTTER) {
      layout.stretch(1.0024 ** -amount, event.offsetY);
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const move = event.deltaX || event.deltaY;
      view.pan((move / layout.plotWidth) * (view.t1 - view.t0));
    } else {
      view.zoom(1.0024 ** amount, layout.ms(event.offsetX));
    }
    actions.moved();
  }, { passive: false });

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.focus();
    canvas.setPointerCapture(event.pointerId);
    view.stop();
    drag = { x: event.offsetX, y: event.offsetY, moved: false, measures: event.shiftKey ? layout.ms(event.offsetX) : null };
  });

  canvas.addEventListener("pointermove", (event) => {
    actions.pointer = event.offsetX >= GUTTER ? event.offsetX : null;
    if (!drag) {
      actions.hover(event.offsetX, event.offsetY);
      return;
    }
    const dx = event.offsetX - drag.x;
    const dy = event.offsetY - drag.y;
    if (!drag.moved && Math.hypot(dx, dy) < CLICK_PX) return;
    drag.moved = true;
    if (drag.measures !== null) {
      actions.measure(drag.measures, layout.ms(event.offsetX));
      return;
    }
    canvas.classList.add("dragging");
    view.pan((-dx / layout.plotWidth) * (view.t1 - view.t0));
    view.scroll -= dy;
    layout.clampScroll();
    [drag.x, drag.y] = [event.offsetX, event.offsetY];
    actions.moved();
  });

  canvas.addEventListener("pointerup", (event) => {
    canvas.classList.remove("dragging");
    if (drag && !drag.moved) actions.click(event.offsetX, event.offsetY);
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => actions.leave());
  canvas.addEventListener("dblclick", () => actions.fit());
  canvas.addEventListener("keydown", (event) => key(event, layout, view, actions));
}

function key(event, layout, view, actions) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const span = view.t1 - view.t0;
  const middle = (view.t0 + view.t1) / 2;
  const scroll = (rows) => {
    view.scroll += rows * Math.max(layout.row, 20);
    layout.clampScroll();
  };
  const known = {
    ArrowLeft: () => view.pan(-span / 6),
    ArrowRight: () => view.pan(span / 6),
    a: () => view.pan(-span / 6),
    d: () => view.pan(span / 6),
    ArrowUp: () => scroll(-1),
    ArrowDown: () => scroll(1),
    PageUp: () => scroll(-layout.room / layout.row / 1.2),
    PageDown: () => scroll(layout.room / layout.row / 1.2),
    w: () => view.zoom(1 / 1.5, actions.at(middle)),
    s: () => view.zoom(1.5, actions.at(middle)),
    "+": () => view.zoom(1 / 1.5, middle),
    "=": () => view.zoom(1 / 1.5, middle),
    "-": () => view.zoom(1.5, middle),
    e: () => layout.stretch(1.4, layout.height / 2),
    q: () => layout.stretch(1 / 1.4, layout.height / 2),
    0: () => actions.whole(),
    n: () => actions.finding(1),
    p: () => actions.finding(-1),
    "]": () => actions.finding(1),
    "[": () => actions.finding(-1),
    ",": () => actions.neighbour(-1),
    ".": () => actions.neighbour(1),
    f: () => actions.fit(),
    m: () => actions.mark(actions.at(middle)),
    "/": () => actions.search(),
    t: () => actions.table(),
    Escape: () => actions.clear(),
    "?": () => actions.help(),
  }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!known) return;
  event.preventDefault();
  view.stop();
  known();
  actions.moved();
}
