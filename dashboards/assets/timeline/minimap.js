// The whole run in a strip: step time with the wait in it, and the stretch that is on screen.

import { GUTTER } from "./layout.js";
import { PHASE } from "./theme.js";

const MOVED_BELOW = 0.6; // of the run: a wider stretch has little room, so a drag chooses anew

export class Minimap {
  constructor(canvas, source, view, theme, moved) {
    Object.assign(this, { canvas, source, view, theme, moved });
    this.context = canvas.getContext("2d");
    this.drag = null;
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  x(ms) {
    return GUTTER + (ms / (this.source.meta.duration || 1)) * (this.width - GUTTER);
  }

  ms(x) {
    return ((x - GUTTER) / (this.width - GUTTER)) * this.source.meta.duration;
  }

  paint() {
    const { context: c, theme } = this;
    c.clearRect(0, 0, this.width, this.height);
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.textAlign = "right";
    c.fillStyle = theme.dim;
    c.fillText("step time", GUTTER - 10, 13);
    c.fillStyle = this.source.meta.split ? theme.bad : theme.dim;
    c.fillText(this.source.meta.split ? "wait" : "blocked", GUTTER - 10, 28);
    c.textAlign = "left";
    this.bars();
    this.window();
  }

  bars() {
    const { context: c, theme } = this;
    const { step_begin, step_end, step_ms, step_wait } = this.source.whole;
    const top = this.scale();
    const full = this.height - 4;
    for (let i = 0; i < step_ms.length; i++) {
      const x = this.x(step_begin[i]);
      const wide = Math.max(0.7, this.x(step_end[i]) - x - 0.5);
      const high = Math.min(full, (step_ms[i] / top) * full);
      c.fillStyle = theme.accent;
      c.globalAlpha = 0.45;
      const wait = Math.min(high, (step_wait[i] / top) * full);
      c.fillRect(x, this.height - high, wide, high - wait);
      c.globalAlpha = 0.8;
      c.fillStyle = theme.phases[this.source.meta.split ? PHASE.WAIT : PHASE.BLOCKED];
      c.fillRect(x, this.height - wait, wide, wait);
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
