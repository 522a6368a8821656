// Paints single spans: the training thread of a rank above, its collectives below.

import { firstAbove } from "./bisect.js";
import { GUTTER } from "./layout.js";
import { duration } from "./text.js";
import { PHASE } from "./theme.js";

const MARK_PX = 3;
const COLLECTION = 0; // the name of garbage collections among the marks
const LEAST_PX = 0.4; // what is narrower and begins where the last one did is not drawn again
const WAIT_ALPHA = 0.28; // of a collective: waiting is pale, moving bytes is full

export class SpanPainter {
  constructor(context, source, view, layout, theme) {
    Object.assign(this, { context, source, view, layout, theme });
  }

  paint() {
    const { layout, source, theme, context: c } = this;
    const byPhase = new Map();
    const labels = [];
    const boxes = { pale: [], full: [] };
    const [first, last] = layout.visibleRows();
    for (let row = first; row < last; row++) {
      const { thread, calls } = layout.lanes(row);
      this.spans(row, thread, byPhase, labels);
      if (calls) this.calls(row, calls, boxes);
    }
    // all of one colour at once: changing the style costs more than a rectangle
    for (const [phase, rects] of byPhase) {
      fill(c, phase === PHASE.WAIT ? theme.hatch : theme.phases[phase], rects);
    }
    c.globalAlpha = WAIT_ALPHA;
    fill(c, theme.phases[PHASE.TRANSFER], boxes.pale);
    c.globalAlpha = 1;
    fill(c, theme.phases[PHASE.TRANSFER], boxes.full);
    for (let row = first; row < last; row++) this.marks(row, layout.lanes(row).thread);
    for (const label of labels) this.label(...label);
  }

  spans(row, lane, byPhase, labels) {
    const { layout, view } = this;
    const { columns, spanRows } = this.source.spans;
    const { span_begin: begin, span_end: end, span_phase: phases, span_sync: sync } = columns;
    const { duration: length, stands } = this.source.meta;
    const [first, last] = spanRows[row];
    let painted = -Infinity;
    for (let i = firstAbove(end, view.t0, first, last); i < last && begin[i] < view.t1; i++) {
      const phase = phases[i];
      // outside the steps nothing is known to happen, but where a rank stands at the end
      if (sync[i] < 0 && phase === PHASE.BETWEEN && !(stands && end[i] >= length - 0.01)) continue;
      const x0 = layout.x(begin[i]);
      const x1 = layout.x(end[i]);
      if (x1 - painted < LEAST_PX) continue;
      painted = x1;
      if (!byPhase.has(phase)) byPhase.set(phase, []);
      // a hair between neighbours, where there is room for one
      const gap = x1 - x0 > 6 ? 0.75 : 0;
      byPhase.get(phase).push(x0, lane[0], Math.max(0.6, x1 - x0 - gap), lane[1]);
      if (x1 - x0 > 44 && lane[1] >= 12) labels.push([phase, end[i] - begin[i], x0, x1, lane, this.source.standsAt(i)]);
    }
  }

  calls(row, lane, { pale, full }) {
    const { layout, view } = this;
    const { columns, callRows, reach } = this.source.spans;
    const { call_begin: begin, call_last: arrived, call_end: end } = columns;
    const [first, last] = callRows[row];
    let painted = -Infinity;
    for (let i = firstAbove(reach, view.t0, first, last); i < last && begin[i] < view.t1; i++) {
      if (end[i] <= view.t0) continue;
      const x1 = layout.x(end[i]);
      if (x1 - painted < LEAST_PX) continue;
      painted = x1;
      const [top, height] = layout.callBox(columns, i, lane);
      const x0 = layout.x(begin[i]);
      const middle = layout.x(arrived[i]);
      if (middle - x0 > 0.3) pale.push(x0, top, middle - x0, height);
      full.push(middle, top, Math.max(0.6, x1 - middle - 0.5), height);
      if (x1 - x0 > 3) full.push(x0, top, 1.5, height);
    }
  }

  // Named spans and garbage collections: a strip along the upper edge; the tooltip has the names.
  marks(row, lane) {
    const { context: c, layout, theme, view } = this;
    const { columns, markRows, markReach } = this.source.spans;
    const [first, last] = markRows[row];
    if (first === last) return;
    c.globalAlpha = 0.7; // spans within spans show darker
    for (let i = firstAbove(markReach, view.t0, first, last); i < last; i++) {
      if (columns.mark_begin[i] >= view.t1) break;
      const x0 = layout.x(columns.mark_begin[i]);
      const x1 = layout.x(columns.mark_end[i]);
      c.fillStyle = columns.mark_name[i] === COLLECTION ? theme.bad : theme.text;
      c.fillRect(x0, lane[0], Math.max(0.6, x1 - x0 - 0.75), Math.min(MARK_PX, lane[1] / 3));
    }
    c.globalAlpha = 1;
  }

  label(phase, ms, x0, x1, lane, site) {
    const { context: c, theme } = this;
    const left = Math.max(x0, GUTTER) + 5;
    const room = Math.min(x1, this.layout.width) - left - 5;
    const name = this.source.meta.phases[phase];
    const full = `${name}  ${duration(ms)}`;
    const texts = [...(site ? [`${full}: stands in ${site}`] : []), full, name];
    const text = texts.find((each) => this.width(each) <= room);
    if (!text) return;
    const middle = lane[0] + lane[1] / 2;
    if (phase === PHASE.WAIT) {
      c.fillStyle = theme.row;
      c.fillRect(left - 3, middle - 7, c.measureText(text).width + 6, 14);
    }
    c.fillStyle = phase === PHASE.WAIT ? theme.bad : theme.ink[phase];
    c.fillText(text, left, middle + 0.5);
  }

  // Measuring a text costs more than drawing a rectangle: lengths are guessed by their letters.
  width(text) {
    this.letter ??= this.context.measureText("0123456789 forward backward ms").width / 30;
    return text.length * this.letter * 1.06;
  }
}

function fill(context, style, rects) {
  if (!rects.length) return;
  context.fillStyle = style;
  for (let i = 0; i < rects.length; i += 4) {
    context.fillRect(rects[i], rects[i + 1], rects[i + 2], rects[i + 3]);
  }
}
