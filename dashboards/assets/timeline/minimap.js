// The whole run in a strip: step time with the wait in it, and the stretch that is on screen.

import { GUTTER } from "./layout.js";
import { PHASE } from "./theme.js";

const MOVED_BELOW = 0.6; // of the run: a wider stretch has little room, so a drag chooses anew

export class Minimap {
  constructor(canvas, source, view, theme, moved) {
    Object.assign(this, { canvas, source, view, theme, moved });
    this.context = canvas.getContext("2d");
    this.sheet = document.createElement("canvas"); // the bars, which change with size and theme only
    this.drag = null;
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    for (const each of [this.canvas, this.sheet]) {
      each.width = Math.round(this.width * ratio);
      each.height = Math.round(this.height * ratio);
      each.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this.refresh();
  }

  refresh() {
    const c = this.sheet.getContext("2d");
    c.clearRect(0, 0, this.width, this.height);
    this.names(c);
    this.bars(c);
  }

  x(ms) {
    return GUTTER + (ms / (this.source.meta.duration || 1)) * (this.width - GUTTER);
  }

  ms(x) {
    return ((x - GUTTER) / (this.width - GUTTER)) * this.source.meta.duration;
  }

  paint() {
    const { context: c } = this;
    c.clearRect(0, 0, this.width, this.height);
    if (this.width) c.drawImage(this.sheet, 0, 0, this.width, this.height);
    this.window();
  }

  names(c) {
    const { theme } = this;
    const { split } = this.source.meta;
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.textAlign = "right";
    const named = [["step time", theme.accent], [split ? "of it wait" : "of it blocked", theme.phases[split ? PHASE.WAIT : PHASE.BLOCKED]], ["of it input", theme.phases[1]]];
    for (const [line, [text, colour]] of named.entries()) {
      c.fillStyle = colour;
      c.fillRect(GUTTER - 14, 7 + 15 * line, 7, 7);
      c.fillStyle = theme.dim;
      c.fillText(text, GUTTER - 20, 11 + 15 * line);
    }
    c.textAlign = "left";
  }

  // One bar a pixel at most: of the steps in a pixel the longest.
  bars(c) {
    const { theme } = this;
    const { step_begin, step_end, step_ms, step_wait, step_input } = this.source.whole;
    const top = this.scale();
    const full = this.height - 4;
    const high = (ms) => Math.min(full, (ms / top) * full);
    let [from, worst] = [-1, -1];
    for (let i = 0; i <= step_ms.length; i++) {
      const x = i < step_ms.length ? this.x(step_begin[i]) : Infinity;
      if (worst >= 0 && x >= from + 1) {
        const wide = Math.max(1, this.x(step_end[worst]) - this.x(step_begin[worst]) - 0.5);
        const [step, wait, input] = [high(step_ms[worst]), high(step_wait[worst]), high(step_input[worst])];
        c.globalAlpha = 0.4;
        c.fillStyle = theme.accent;
        c.fillRect(from, this.height - step, wide, step - wait - input);
        c.globalAlpha = 0.6; // victims are quiet here, too
        c.fillStyle = theme.phases[this.source.meta.split ? PHASE.WAIT : PHASE.BLOCKED];
        c.fillRect(from, this.height - wait - input, wide, wait);
        c.globalAlpha = 1;
        c.fillStyle = theme.phases[1];
        c.fillRect(from, this.height - input, wide, input);
        worst = -1;
      }
      if (worst < 0) [from, worst] = [x, i];
      else if (step_ms[i] > step_ms[worst]) worst = i;
    }
    c.globalAlpha = 1;
  }

  // A few long first steps must not flatten all the others.
  scale() {
    const sorted = Float64Array.from(this.source.whole.step_ms).sort();
    return (sorted[Math.floor(sorted.length * 0.98)] || 1) * 1.15;
  }

  window() {
    const { context: c, theme, view } = this;
    const [a, b] = this.drag?.choose ?? [this.x(Math.max(0, view.t0)), this.x(Math.min(this.source.meta.duration, view.t1))];
    const left = Math.min(a, b);
    const wide = Math.max(3, Math.abs(b - a));
    c.globalAlpha = 0.14;
    c.fillStyle = theme.accent;
    c.fillRect(left, 0, wide, this.height);
    c.globalAlpha = 1;
    c.strokeStyle = theme.accent;
    c.lineWidth = 2;
    c.strokeRect(left + 1, 1, Math.max(1, wide - 2), this.height - 2);
    c.fillStyle = theme.accent;
    for (const at of view.marks) c.fillRect(this.x(at) - 1, 0, 2, this.height);
  }

  down(event) {
    this.canvas.setPointerCapture(event.pointerId);
    const at = this.ms(event.offsetX);
    const wide = this.view.t1 - this.view.t0 >= this.source.meta.duration * MOVED_BELOW;
    const inside = at >= this.view.t0 && at <= this.view.t1 && !wide;
    this.view.stop();
    this.drag = inside ? { from: event.offsetX } : { choose: [event.offsetX, event.offsetX] };
  }

  move(event) {
    if (!this.drag) return;
    if (this.drag.choose) {
      this.drag.choose[1] = event.offsetX;
      this.paint();
      return;
    }
    this.view.pan(this.ms(event.offsetX) - this.ms(this.drag.from));
    this.drag.from = event.offsetX;
    this.moved();
  }

  up() {
    const choose = this.drag?.choose;
    this.drag = null;
    if (!choose) return;
    const [a, b] = [Math.min(...choose), Math.max(...choose)];
    if (b - a >= 4) this.view.set(this.ms(a), this.ms(b));
    else {
      const half = Math.min(this.view.t1 - this.view.t0, this.source.meta.duration / 10) / 2;
      this.view.set(this.ms(a) - half, this.ms(a) + half);
    }
    this.moved();
  }
}
