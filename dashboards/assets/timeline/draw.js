// Paints a frame of the timeline: rows by the tier in view, rulers, the names of ranks and hosts.

import { firstAbove } from "./bisect.js";
import { GUTTER, RULER } from "./layout.js";
import { Overlay } from "./overlay.js";
import { Picture } from "./picture.js";
import { SpanPainter } from "./spans.js";
import { moment, roundStep } from "./text.js";

const FONT = "11px system-ui, sans-serif";
const LABEL_PX = 13; // of a rank's name, with air
const HOST_PX = 44; // of the gutter, left of the ranks' names
const BRACKET_FROM = 10; // lower hosts have no bracket of their own

export class Painter {
  constructor(canvas, source, view, layout, theme) {
    Object.assign(this, { canvas, source, view, layout, theme });
    this.context = canvas.getContext("2d");
    this.overlay = new Overlay(this.context, source, view, layout, theme);
    this.picture = new Picture(source, view, layout, theme);
    this.single = new SpanPainter(this.context, source, view, layout, theme);
    this.ratio = window.devicePixelRatio || 1;
    this.refresh();
  }

  // What is known only once the run is read, or read again.
  refresh() {
    const { meta } = this.source;
    this.culprits = new Set(meta.findings.filter((f) => f.severity !== "info").flatMap((f) => f.culprits));
    this.hosts = hostRows(meta.hosts);
  }

  resize() {
    const { clientWidth, clientHeight } = this.canvas;
    this.canvas.width = Math.round(clientWidth * this.ratio);
    this.canvas.height = Math.round(clientHeight * this.ratio);
    this.layout.resize(clientWidth, clientHeight);
  }

  paint() {
    const { context: c, layout, theme } = this;
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.font = FONT;
    c.textBaseline = "middle";
    c.fillStyle = theme.ground;
    c.fillRect(0, 0, layout.width, layout.height);
    const tier = this.source.tier(this.view, layout);
    if (tier === "spans") this.rowGrounds();
    else this.picture.paint(c, tier);
    this.clipped(GUTTER, RULER, () => {
      if (tier === "spans" && this.source.spans) this.single.paint();
      this.stepLines();
      this.overlay.paint(tier);
    });
    this.clipped(0, RULER, () => this.gutter());
    this.timeRuler();
    this.stepRuler();
    this.overlay.above();
  }

  clipped(left, top, inside) {
    const { context: c, layout } = this;
    c.save();
    c.beginPath();
    c.rect(left, top, layout.width - left, layout.height - top);
    c.clip();
    inside();
    c.restore();
  }

  rowGrounds() {
    const { context: c, layout, theme } = this;
    const [first, last] = layout.visibleRows();
    c.fillStyle = theme.row;
    this.clipped(GUTTER, RULER, () => {
      if (layout.row < 6) c.fillRect(GUTTER, layout.top(first), layout.plotWidth, (last - first) * layout.row);
      else for (let row = first; row < last; row++) c.fillRect(GUTTER, layout.top(row) + 1, layout.plotWidth, layout.row - 2);
    });
  }

  // Hosts in brackets, names of ranks where there is room, the culprits' in any case.
  gutter() {
    const { context: c, layout, source, theme, view } = this;
    const [first, last] = layout.visibleRows();
    const taken = [];
    const name = (row, late) => {
      const middle = layout.top(row) + layout.row / 2;
      // a name is as tall as many low rows: the first and the last must not be cut off
      const y = layout.row < LABEL_PX ? Math.min(layout.height - 7, Math.max(RULER + 7, middle)) : middle;
      if (taken.some((other) => Math.abs(other - y) < LABEL_PX)) return;
      taken.push(y);
      const rank = source.meta.ranks[row];
      if (rank === view.rank) this.chosenRank(y);
      c.fillStyle = late ? theme.bad : theme.text;
      c.fillText(`${late ? "▲ " : ""}rank ${rank}`, GUTTER - 6, y);
    };
    c.textAlign = "right";
    const chosen = view.rank === null ? undefined : source.rowOfRank.get(view.rank);
    if (chosen !== undefined && chosen >= first && chosen < last) name(chosen, this.culprits.has(view.rank));
    for (const rank of this.culprits) {
      const row = source.rowOfRank.get(rank);
      if (row !== undefined && row >= first && row < last) name(row, true);
    }
    const every = niceEvery(LABEL_PX / layout.row);
    for (let row = Math.ceil(first / every) * every; row < last; row += every) name(row, this.culprits.has(source.meta.ranks[row]));
    c.textAlign = "left";
    this.brackets(first, last);
  }

  chosenRank(y) {
    const { context: c, layout, theme } = this;
    const high = Math.max(LABEL_PX + 2, layout.row);
    c.globalAlpha = 0.16;
    c.fillStyle = theme.accent;
    c.fillRect(HOST_PX + 2, y - high / 2, GUTTER - HOST_PX - 2, high);
    c.globalAlpha = 1;
  }

  brackets(first, last) {
    const { context: c, layout, theme } = this;
    if (this.hosts.length < 2) return;
    let free = -Infinity;
    for (const { host, begin, end } of this.hosts) {
      if (end <= first || begin >= last) continue;
      const top = Math.max(RULER, layout.top(begin));
      const bottom = Math.min(layout.height, layout.top(end));
      c.fillStyle = theme.dim;
      if (layout.row * (end - begin) >= BRACKET_FROM) {
        c.fillRect(HOST_PX - 2, top + 1, 1, bottom - top - 2);
        c.fillRect(HOST_PX - 2, top + 1, 4, 1);
        c.fillRect(HOST_PX - 2, bottom - 2, 4, 1);
      }
      const y = Math.min(layout.height - 7, Math.max(RULER + 7, (top + bottom) / 2));
      if (y < free) continue;
      free = y + LABEL_PX * (layout.row * (end - begin) < BRACKET_FROM ? 2 : 1);
      c.fillText(shortened(c, host, HOST_PX - 8), 3, y);
    }
  }

  stepLines() {
    const { context: c, layout, source, theme, view } = this;
    if ((source.medianStep * layout.plotWidth) / (view.t1 - view.t0) < 60) return;
    const bottom = Math.min(layout.height, layout.top(source.meta.ranks.length));
    c.strokeStyle = theme.dim;
    c.globalAlpha = 0.5;
    c.setLineDash([3, 4]);
    c.beginPath();
    this.eachStep((x) => {
      c.moveTo(Math.round(x) + 0.5, RULER);
      c.lineTo(Math.round(x) + 0.5, bottom);
    });
    c.stroke();
    c.setLineDash([]);
    c.globalAlpha = 1;
  }

  eachStep(visit) {
    const { whole } = this.source;
    const count = whole.step_sync.length;
    for (let i = Math.max(0, firstAbove(whole.step_begin, this.view.t0, 0, count) - 1); i < count; i++) {
      if (whole.step_begin[i] > this.view.t1) break;
      visit(this.layout.x(whole.step_begin[i]), whole.step_sync[i], this.layout.x(whole.step_end[i]));
    }
  }

  timeRuler() {
    const { context: c, layout, theme, view } = this;
    c.fillStyle = theme.ground;
    c.fillRect(0, 0, layout.width, RULER);
    const step = roundStep(((view.t1 - view.t0) * 96) / layout.plotWidth);
    c.fillStyle = theme.dim;
    c.textAlign = "left";
    for (let at = Math.ceil(view.t0 / step) * step; at <= view.t1; at += step) {
      const x = layout.x(at);
      if (x < GUTTER - 1) continue;
      c.fillRect(x, 4, 1, 14);
      this.whole(moment(at, step), x + 4, 11);
    }
  }

  // A number that is cut off at the edge would be another one.
  whole(text, x, y) {
    const { context: c, layout } = this;
    if (x + c.measureText(text).width <= layout.width) c.fillText(text, x, y);
  }

  stepRuler() {
    const { context: c, layout, theme } = this;
    c.fillStyle = theme.dim;
    c.textAlign = "right";
    c.fillText("step", GUTTER - 8, 31);
    c.textAlign = "left";
    c.save();
    c.beginPath();
    c.rect(GUTTER, 20, layout.plotWidth, RULER - 20);
    c.clip();
    const stepPx = (this.source.medianStep * layout.plotWidth) / (this.view.t1 - this.view.t0);
    const every = Math.max(1, roundStep(48 / stepPx));
    let free = GUTTER - 40;
    this.eachStep((x, sync, end) => {
      const left = Math.max(x, GUTTER);
      if (sync % every || left < free || end - left < Math.min(30, end - x)) return;
      const text = String(sync);
      c.fillStyle = theme.row;
      if (end - x > 30) c.fillRect(x + 0.5, 22, end - x - 1, 18);
      c.fillStyle = theme.text;
      c.fillRect(left, 24, 1, 14);
      this.whole(text, left + 4, 31.5);
      free = left + c.measureText(text).width + 22;
    });
    c.restore();
  }
}

// Neighbouring rows on one host.
function hostRows(hosts) {
  const groups = [];
  for (let row = 0; row < hosts.length; row++) {
    const last = groups[groups.length - 1];
    if (last?.host === hosts[row]) last.end = row + 1;
    else groups.push({ host: hosts[row], begin: row, end: row + 1 });
  }
  return groups;
}

// Ranks come in powers of two: every 1st, 2nd, 4th, … is named.
function niceEvery(least) {
  return 2 ** Math.max(0, Math.ceil(Math.log2(least)));
}

// The end of a host's name tells it from the others.
function shortened(context, text, room) {
  let shown = text;
  while (shown.length > 2 && context.measureText(shown).width > room) shown = `…${shown.slice(2)}`;
  return shown;
}
