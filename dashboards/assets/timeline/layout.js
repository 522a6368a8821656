// Where rows and lanes lie on the canvas, and what lies under the pointer.

import { firstAbove } from "./data.js";

export const GUTTER = 84;
export const RULER = 42;
const LEAST_ROW = 14;
const MOST_ROW = 180;
const LANES_FROM = 26; // rows lower than this show the training thread only

export class Layout {
  constructor(source, view) {
    this.source = source;
    this.view = view;
    this.width = 0;
    this.height = 0;
  }

  resize(width, height) {
    this.width = width;
    this.height = height;
    this.fitRows();
  }

  // All ranks on screen where they fit; the reader may make them taller.
  fitRows() {
    const rows = this.source.meta.ranks.length || 1;
    const fit = ((this.height - RULER - 4) / rows) * this.view.tall;
    this.row = Math.floor(Math.min(MOST_ROW, Math.max(LEAST_ROW * this.view.tall, fit)));
    this.clampScroll();
  }

  // Taller or lower rows; what is at this height stays there.
  stretch(factor, y) {
    const at = (y - RULER + this.view.scroll) / this.row;
    this.view.tall = Math.min(Math.max(this.view.tall * factor, 1), MOST_ROW / LEAST_ROW);
    this.fitRows();
    this.view.scroll = at * this.row - (y - RULER);
    this.clampScroll();
  }

  clampScroll() {
    const all = this.row * this.source.meta.ranks.length;
    const most = Math.max(0, all - (this.height - RULER - 4));
    this.view.scroll = Math.min(Math.max(this.view.scroll, 0), most);
  }

  get plotWidth() {
    return Math.max(1, this.width - GUTTER);
  }

  x(ms) {
    return GUTTER + ((ms - this.view.t0) / (this.view.t1 - this.view.t0)) * this.plotWidth;
  }

  ms(x) {
    return this.view.t0 + ((x - GUTTER) / this.plotWidth) * (this.view.t1 - this.view.t0);
  }

  top(row) {
    return RULER + row * this.row - this.view.scroll;
  }

  rowAt(y) {
    const row = Math.floor((y - RULER + this.view.scroll) / this.row);
    return y >= RULER && row >= 0 && row < this.source.meta.ranks.length ? row : null;
  }

  show(rank) {
    const row = this.source.rowOfRank.get(rank);
    if (row === undefined) return;
    const top = this.top(row);
    if (top < RULER) this.view.scroll += top - RULER;
    else if (top + this.row > this.height) this.view.scroll += top + this.row - this.height + 4;
    this.clampScroll();
  }

  // Lanes of a row: the training thread above, collectives below.
  lanes(row) {
    const top = this.top(row) + 2;
    const inner = this.row - 4;
    if (this.row < LANES_FROM) return { thread: [top, inner], calls: null };
    const thread = Math.round(inner * 0.5);
    return { thread: [top, thread], calls: [top + thread + 1, inner - thread - 1] };
  }

  callBox(columns, i, lane) {
    const height = lane[1] / columns.call_slots[i];
    return [lane[0] + height * columns.call_slot[i], Math.max(1.5, height - 0.5)];
  }

  // { kind, index } of what lies there, or null.
  hit(x, y) {
    const row = this.rowAt(y);
    const loaded = this.source.spans;
    if (row === null || x < GUTTER || !loaded || !this.source.singly(this.view, this.plotWidth)) return null;
    const { thread, calls } = this.lanes(row);
    if (y < thread[0] + thread[1]) return this.hitSpan(loaded, row, this.ms(x));
    return calls && y >= calls[0] ? this.hitCall(loaded, row, x, y, calls) : null;
  }

  hitSpan(loaded, row, ms) {
    const [first, last] = loaded.spanRows[row];
    const i = firstAbove(loaded.columns.span_end, ms, first, last);
    return i < last && loaded.columns.span_begin[i] <= ms ? { kind: "span", index: i, marks: this.marksAt(loaded, row, ms) } : null;
  }

  // Numbers of the named spans and collections that cover this moment, the outer ones first.
  marksAt(loaded, row, ms) {
    const { columns, markRows, markReach } = loaded;
    const [first, last] = markRows[row];
    const found = [];
    for (let i = firstAbove(markReach, ms, first, last); i < last && columns.mark_begin[i] <= ms; i++) {
      if (columns.mark_end[i] >= ms) found.push(i);
    }
    return found;
  }

  hitCall(loaded, row, x, y, lane) {
    const { columns, reach } = loaded;
    const [first, last] = loaded.callRows[row];
    for (let i = firstAbove(reach, this.ms(x - 2), first, last); i < last; i++) {
      if (columns.call_begin[i] > this.ms(x + 2)) break;
      const [top, height] = this.callBox(columns, i, lane);
      if (columns.call_end[i] >= this.ms(x - 2) && y >= top && y <= top + height) return { kind: "call", index: i };
    }
    return null;
  }
}
