// Paints the timeline: rulers, rows of spans and collectives, marks of the selection.

import { firstAbove } from "./data.js";
import { GUTTER, RULER } from "./layout.js";
import { duration, moment, more, roundStep } from "./text.js";
import { PHASE } from "./theme.js";

const FONT = "11px system-ui, sans-serif";
const MARK_PX = 3;
const COLLECTION = 0; // the name of garbage collections among the marks
const DEAD_ZONE = 0.035; // of a step: a smaller excess is noise, and stays quiet
const FULL_AT = 0.45; // of a step: from here on the colour is at its strongest

export class Painter {
  constructor(canvas, source, view, layout, theme) {
    Object.assign(this, { canvas, source, view, layout, theme });
    this.context = canvas.getContext("2d");
    this.detail = null; // of the selected call: its arrivals are joined
    this.culprits = new Set(source.meta.findings.filter((f) => f.severity !== "info").flatMap((f) => f.culprits));
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    const { clientWidth, clientHeight } = this.canvas;
    this.canvas.width = Math.round(clientWidth * ratio);
    this.canvas.height = Math.round(clientHeight * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.layout.resize(clientWidth, clientHeight);
  }

  paint() {
    const { context: c, layout, theme } = this;
    c.font = FONT;
    c.textBaseline = "middle";
    c.fillStyle = theme.ground;
    c.fillRect(0, 0, layout.width, layout.height);
    this.rowGrounds();
    this.clipped(GUTTER, RULER, () => {
      const singly = this.source.singly(this.view, layout.plotWidth);
      if (singly && this.source.spans) this.rows();
      else this.cells();
      this.stepLines();
      this.findingBox();
      this.selection();
    });
    this.clipped(0, RULER, () => this.names());
    this.timeRuler();
    this.stepRuler();
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

  visibleRows() {
    const { layout, source, view } = this;
    const first = Math.max(0, Math.floor(view.scroll / layout.row));
    const last = Math.min(source.meta.ranks.length, Math.ceil((view.scroll + layout.height - RULER) / layout.row));
    return [first, last];
  }

  rowGrounds() {
    const { context: c, layout, source, theme, view } = this;
    this.clipped(0, RULER, () => {
      const [first, last] = this.visibleRows();
      for (let row = first; row < last; row++) {
        const top = layout.top(row);
        c.fillStyle = theme.row;
        c.fillRect(GUTTER, top + 1, layout.width - GUTTER, layout.row - 2);
        if (source.meta.ranks[row] === view.rank) {
          c.globalAlpha = 0.16;
          c.fillStyle = theme.accent;
          c.fillRect(0, top, GUTTER, layout.row);
          c.globalAlpha = 1;
        }
      }
    });
  }

  names() {
    const { context: c, layout, source, theme } = this;
    const every = Math.ceil(13 / layout.row);
    const [first, last] = this.visibleRows();
    c.textAlign = "right";
    for (let row = first; row < last; row++) {
      const rank = source.meta.ranks[row];
      const late = this.culprits.has(rank);
      if (row % every && !late) continue;
      c.fillStyle = late ? theme.bad : theme.text;
      c.fillText(`${late ? "▲ " : ""}rank ${rank}`, GUTTER - 10, layout.top(row) + layout.row / 2);
    }
    c.textAlign = "left";
  }

  rows() {
    const [first, last] = this.visibleRows();
    for (let row = first; row < last; row++) {
      const { thread, calls } = this.layout.lanes(row);
      this.spans(row, thread);
      this.marks(row, thread);
      if (calls) this.calls(row, calls);
    }
  }

  spans(row, lane) {
    const { context: c, layout, theme, view } = this;
    const { columns, spanRows } = this.source.spans;
    const [first, last] = spanRows[row];
    for (let i = firstAbove(columns.span_end, view.t0, first, last); i < last; i++) {
      if (columns.span_begin[i] >= view.t1) break;
      if (columns.span_sync[i] < 0 && columns.span_phase[i] === PHASE.BETWEEN) continue;
      const x0 = layout.x(columns.span_begin[i]);
      const x1 = layout.x(columns.span_end[i]);
      const phase = columns.span_phase[i];
      c.fillStyle = phase === PHASE.WAIT ? theme.hatch : theme.phases[phase];
      // a hair between neighbours, where there is room for one
      const gap = x1 - x0 > 6 ? 0.75 : 0;
      c.fillRect(x0, lane[0], Math.max(0.6, x1 - x0 - gap), lane[1]);
      if (x1 - x0 > 44 && lane[1] >= 12) this.label(phase, columns.span_end[i] - columns.span_begin[i], x0, x1, lane);
    }
  }

  // Named spans and garbage collections: a strip along the upper edge; the tooltip has the names.
  marks(row, lane) {
    const { context: c, layout, theme, view } = this;
    const { columns, markRows, markReach } = this.source.spans;
    const [first, last] = markRows[row];
    c.globalAlpha = 0.7; // spans within spans show darker
    for (let i = firstAbove(markReach, view.t0, first, last); i < last; i++) {
      if (columns.mark_begin[i] >= view.t1) break;
      const x0 = layout.x(columns.mark_begin[i]);
      const x1 = layout.x(columns.mark_end[i]);
      c.fillStyle = columns.mark_name[i] === COLLECTION ? theme.bad : theme.text;
      c.fillRect(x0, lane[0], Math.max(0.6, x1 - x0 - 0.75), MARK_PX);
    }
    c.globalAlpha = 1;
  }

  label(phase, ms, x0, x1, lane) {
    const { context: c, theme } = this;
    const left = Math.max(x0, GUTTER) + 5;
    const room = Math.min(x1, this.layout.width) - left - 5;
    const name = this.source.meta.phases[phase];
    const full = `${name}  ${duration(ms)}`;
    const text = c.measureText(full).width <= room ? full : name;
    const wide = c.measureText(text).width;
    if (wide > room) return;
    const middle = lane[0] + lane[1] / 2;
    if (phase === PHASE.WAIT) {
      c.fillStyle = theme.row;
      c.fillRect(left - 3, middle - 7, wide + 6, 14);
    }
    c.fillStyle = phase === PHASE.WAIT ? theme.bad : theme.ink[phase];
    c.fillText(text, left, middle + 0.5);
  }

  calls(row, lane) {
    const { context: c, layout, theme, view } = this;
    const { columns, callRows, reach } = this.source.spans;
    const [first, last] = callRows[row];
    const colour = theme.phases[PHASE.TRANSFER];
    for (let i = firstAbove(reach, view.t0, first, last); i < last; i++) {
      if (columns.call_begin[i] >= view.t1) break;
      if (columns.call_end[i] <= view.t0) continue;
      const [top, height] = layout.callBox(columns, i, lane);
      const x0 = layout.x(columns.call_begin[i]);
      const middle = layout.x(columns.call_last[i]);
      const x1 = layout.x(columns.call_end[i]);
      c.fillStyle = colour;
      c.globalAlpha = 0.28; // waiting for the last rank is pale, moving bytes is full
      if (middle > x0) c.fillRect(x0, top, middle - x0, height);
      c.globalAlpha = 1;
      c.fillRect(middle, top, Math.max(0.6, x1 - middle - 0.5), height);
      c.fillRect(x0, top, 1.5, height);
    }
  }

  // Zoomed out: who took longer than the others in the step, and in which phase.
  cells() {
    const { source, theme, layout, context: c } = this;
    const { whole, medianStep } = source;
    const count = whole.cell_first_sync.length;
    const [first, last] = this.visibleRows();
    for (let row = first; row < last; row++) {
      const [top, height] = [layout.top(row) + 1, layout.row - 2];
      let pixel = null, worst = 0, cause = 0, until = 0;
      const flush = () => {
        if (pixel === null || worst < DEAD_ZONE) return;
        c.globalAlpha = 0.2 + 0.8 * Math.min(1, worst / FULL_AT);
        c.fillStyle = theme.phases[cause];
        c.fillRect(pixel, top, Math.max(1, until - pixel), height);
      };
      const base = row * count;
      const from = firstAbove(whole.cell_end, this.view.t0, base, base + count);
      for (let i = from; i < base + count && whole.cell_begin[i] <= this.view.t1; i++) {
        const x = layout.x(whole.cell_begin[i]);
        const excess = whole.cell_excess[i] / medianStep;
        if (pixel === null || x >= pixel + 1) {
          flush();
          pixel = x;
          worst = 0;
        }
        until = layout.x(whole.cell_end[i]);
        if (excess > worst) [worst, cause] = [excess, whole.cell_cause[i]];
      }
      flush();
      c.globalAlpha = 1;
    }
  }

  stepLines() {
    const { context: c, layout, source, theme, view } = this;
    if ((source.medianStep * layout.plotWidth) / (view.t1 - view.t0) < 60) return;
    c.strokeStyle = theme.dim;
    c.globalAlpha = 0.5;
    c.setLineDash([3, 4]);
    c.beginPath();
    this.eachStep((x) => {
      c.moveTo(Math.round(x) + 0.5, RULER);
      c.lineTo(Math.round(x) + 0.5, layout.height);
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
      c.fillText(moment(at, step), x + 4, 11);
    }
  }

  stepRuler() {
    const { context: c, layout, theme } = this;
    c.fillStyle = theme.dim;
    c.textAlign = "right";
    c.fillText("step", GUTTER - 10, 31);
    c.textAlign = "left";
    c.save();
    c.beginPath();
    c.rect(GUTTER, 20, layout.plotWidth, RULER - 20);
    c.clip();
    const stepPx = (this.source.medianStep * layout.plotWidth) / (this.view.t1 - this.view.t0);
    const every = Math.max(1, roundStep(48 / stepPx));
    let free = GUTTER - 40;
    this.eachStep((x, sync, end) => {
      const text = String(sync);
      const left = Math.max(x, GUTTER);
      if (sync % every || left < free || end - left < Math.min(30, end - x)) return;
      c.fillStyle = theme.row;
      if (end - x > 30) c.fillRect(x + 0.5, 22, end - x - 1, 18);
      c.fillStyle = theme.text;
      c.fillRect(left, 24, 1, 14);
      c.fillText(text, left + 4, 31.5);
      free = left + c.measureText(text).width + 22;
    });
    c.restore();
  }

  findingBox() {
    const { context: c, layout, source, theme, view } = this;
    const finding = source.meta.findings.find((each) => each.id === view.finding);
    if (!finding) return;
    c.strokeStyle = theme.bad;
    c.lineWidth = 1.5;
    for (const [first, last] of finding.steps) {
      const [a, b] = [source.indexOfSync.get(first), source.indexOfSync.get(last)];
      if (a === undefined || b === undefined) continue;
      const x0 = Math.max(layout.x(source.whole.step_begin[a]), GUTTER - 4);
      const x1 = Math.min(layout.x(source.whole.step_end[b]), layout.width + 4);
      for (const rank of finding.culprits) {
        const row = source.rowOfRank.get(rank);
        if (row !== undefined) c.strokeRect(x0, layout.top(row) + 0.5, x1 - x0, layout.row - 1);
      }
    }
    c.lineWidth = 1;
  }

  selection() {
    const { view } = this;
    if (!view.sel || !this.source.spans) return;
    if (view.sel.kind === "call") this.arrivals();
    const box = this.boxOf(view.sel);
    if (!box) return;
    const c = this.context;
    c.lineWidth = 3;
    c.strokeStyle = this.theme.ground;
    c.strokeRect(...box);
    c.lineWidth = 1.75;
    c.strokeStyle = this.theme.text;
    c.strokeRect(...box);
    c.lineWidth = 1;
  }

  boxOf(sel) {
    const { layout, source } = this;
    const { columns } = source.spans;
    const index = indexOfId(columns[`${sel.kind}_id`], sel.id);
    if (index < 0) return null;
    const row = source.rowOfRank.get(columns[`${sel.kind}_rank`][index]);
    const { thread, calls } = layout.lanes(row);
    if (sel.kind === "call" && !calls) return null;
    const [top, height] = sel.kind === "span" ? thread : layout.callBox(columns, index, calls);
    const x0 = layout.x(columns[`${sel.kind}_begin`][index]);
    return [x0, top, Math.max(2, layout.x(columns[`${sel.kind}_end`][index]) - x0), height];
  }

  // One line over the ranks joins the arrivals at the selected collective; the last is named.
  arrivals() {
    const { context: c, detail, layout, source, theme } = this;
    if (!detail || detail.id !== this.view.sel.id || !detail.arrivals) return;
    const points = detail.arrivals
      .map(({ rank, begin_ms, lateness_ms }) => ({ rank, lateness_ms, row: source.rowOfRank.get(rank), x: layout.x(begin_ms) }))
      .sort((a, b) => a.row - b.row);
    c.strokeStyle = theme.text;
    c.lineWidth = 1.75;
    c.beginPath();
    for (const { row, x } of points) {
      const top = layout.top(row);
      c.lineTo(x, top);
      c.lineTo(x, top + layout.row);
    }
    c.stroke();
    for (const point of points) this.arrivalDot(point, point.rank === detail.last_rank);
    c.lineWidth = 1;
  }

  arrivalDot({ rank, row, x, lateness_ms }, isLast) {
    const { context: c, layout, theme } = this;
    const { calls } = layout.lanes(row);
    const y = calls ? calls[0] + calls[1] / 2 : layout.top(row) + layout.row / 2;
    c.fillStyle = isLast ? theme.bad : theme.text;
    c.beginPath();
    c.arc(x, y, isLast ? 5.5 : 3, 0, 2 * Math.PI);
    c.fill();
    if (!isLast) return;
    const text = `rank ${rank} arrives last, ${more(lateness_ms)}`;
    const wide = c.measureText(text).width + 12;
    const left = x + 12 + wide > layout.width ? x - 12 - wide : x + 12;
    c.fillStyle = theme.bad;
    c.beginPath();
    c.roundRect(left, y - 9, wide, 18, 4);
    c.fill();
    c.fillStyle = theme.ground;
    c.fillText(text, left + 6, y + 0.5);
  }
}

export function indexOfId(ids, id) {
  let [low, high] = [0, ids.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ids[middle] < id) low = middle + 1;
    else high = middle;
  }
  return low < ids.length && ids[low] === id ? low : -1;
}
