// Where rows and lanes lie on the canvas, and what lies under the pointer.

import { firstAbove } from "./bisect.js";

export const GUTTER = 116;
export const RULER = 42;
export const LANES_FROM = 26; // rows lower than this show the training thread only
const MOST_FIT = 180; // few ranks do not fill the screen
const MOST_ROW = 480;
const READABLE_ROW = 40; // a rank that is asked for is shown at least this tall

export class Layout {
  constructor(source, view) {
    this.source = source;
    this.view = view;
    this.width = 0;
    this.height = 0;
    this.row = 1;
  }

  resize(width, height) {
    this.width = width;
    this.height = height;
    this.fitRows();
  }

  get room() {
    return Math.max(1, this.height - RULER - 4);
  }

  // All ranks on screen, however many; the reader may make them taller.
  get fit() {
    return Math.min(MOST_FIT, this.room / (this.source.meta.ranks.length || 1));
  }

  fitRows() {
    const row = Math.min(MOST_ROW, this.fit * this.view.tall);
    this.row = row >= 8 ? Math.floor(row) : row;
    this.clampScroll();
  }

  // Taller or lower rows; what is at this height stays there.
  stretch(factor, y) {
    const at = (y - RULER + this.view.scroll) / this.row;
    this.view.tall = Math.min(Math.max(this.view.tall * factor, 1), MOST_ROW / this.fit);
    this.fitRows();
    this.view.scroll = at * this.row - (y - RULER);
    this.clampScroll();
  }

  clampScroll() {
    const all = this.row * this.source.meta.ranks.length;
    const most = Math.max(0, all - this.room);
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

  visibleRows() {
    const first = Math.max(0, Math.floor(this.view.scroll / this.row));
    const last = Math.ceil((this.view.scroll + this.height - RULER) / this.row);
    return [first, Math.min(this.source.meta.ranks.length, Math.max(first, last))];
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

  // The rank in the middle, in a row that can be read.
  focus(rank) {
    const row = this.source.rowOfRank.get(rank);
    if (row === undefined) return;
    if (this.row < READABLE_ROW) {
      this.view.tall = Math.max(1, READABLE_ROW / this.fit);
      this.fitRows();
    }
    this.view.scroll = (row + 0.5) * this.row - this.room / 2;
    this.clampScroll();
  }

  // Lanes of a row: the training thread above, collectives below.
  lanes(row) {
    const air = this.row >= 12 ? 2 : 0.5;
    const top = this.top(row) + air;
    const inner = Math.max(0.8, this.row - 2 * air);
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
    if (row === null || x < GUTTER || !loaded || this.source.tier(this.view, this) !== "spans") return null;
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
