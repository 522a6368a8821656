// Fetches the run: its steps, pictures of many spans, and the single spans of a stretch.

import { LANES_FROM } from "./layout.js";
import { RETRY_MS, Tiles } from "./tiles.js";

const ARRAYS = {
  u1: Uint8Array, u2: Uint16Array, u4: Uint32Array,
  i2: Int16Array, i4: Int32Array, f4: Float32Array, f8: Float64Array,
};
const WHOLE_BELOW = 60_000; // spans of a run that is fetched at once
const MOST_IN_VIEW = 8_000; // spans drawn singly; what is more takes longer than a frame
const FEW_IN_VIEW = 2_000; // so few are always drawn singly
const STANDING_SHARE = 0.1; // of the view, in which ranks stand still
const LEAST_ROW_PX = 3; // of single spans, where they are many
const MOST_FETCHED = 24_000; // spans of a view with its margins, roughly
const LEAST_STEP_PX = 7; // a step narrower than this shows as one cell

export class Source {
  constructor(base) {
    this.base = base;
    this.meta = null;
    this.whole = null;
    this.spans = null; // { t0, t1, r0, r1, columns, ... } of what was fetched last
    this.failure = null;
    this.request = null;
    this.waiting = null;
    this.tiles = new Tiles((path, signal) => this.bytes(path, signal));
  }

  async open() {
    [this.meta, this.whole] = await Promise.all([this.json("meta"), this.columns("steps")]);
    this.rowOfRank = new Map(this.meta.ranks.map((rank, row) => [rank, row]));
    this.indexOfSync = new Map(Array.from(this.whole.step_sync, (sync, index) => [sync, index]));
    this.medianStep = median(this.whole.step_ms) || this.meta.duration || 1;
  }

  // After the run has grown: what was fetched of it may have changed.
  async reopen() {
    await this.open();
    this.spans = null;
    this.tiles.forget();
  }

  async json(path) {
    const response = await fetch(this.base + path);
    if (!response.ok) throw new Error(`${path}: ${response.status}`);
    return response.json();
  }

  async bytes(path, signal) {
    const response = await fetch(this.base + path, { signal });
    if (!response.ok) throw new Error(`${path}: ${response.status}`);
    return response.arrayBuffer();
  }

  async columns(path, signal) {
    return decode(await this.bytes(path, signal));
  }

  // "steps": whom each step waited for; "phases": the phase at each time; "spans": each span.
  tier(view, layout) {
    const { meta } = this;
    const stepPx = (this.medianStep * layout.plotWidth) / (view.t1 - view.t0);
    const [first, last] = layout.visibleRows();
    const share = Math.min(1, (view.t1 - view.t0) / (meta.duration || 1));
    const shown = meta.spans + (this.showsCalls(layout) ? meta.calls : 0);
    const drawn = (shown * share * (last - first)) / (meta.ranks.length || 1);
    if (drawn <= FEW_IN_VIEW) return "spans";
    if (stepPx < LEAST_STEP_PX && !this.showsStanding(view) && this.whole.step_sync.length) return "steps";
    return drawn <= MOST_IN_VIEW && layout.row >= LEAST_ROW_PX ? "spans" : "phases";
  }

  // Where ranks stand at the end there are no steps to tell them by.
  showsStanding(view) {
    const { step_end } = this.whole;
    const last = step_end.length ? step_end[step_end.length - 1] : 0;
    return this.meta.stands && Math.min(view.t1, this.meta.duration) - last > STANDING_SHARE * (view.t1 - view.t0);
  }

  // The line in which a rank stands still at the end, where this span is the one that lasts until then.
  standsAt(index) {
    const { span_end, span_rank, span_sync } = this.spans.columns;
    const last = this.meta.stands && span_sync[index] < 0 && span_end[index] >= this.meta.duration - 0.01;
    return last ? this.meta.standing[span_rank[index]] : undefined;
  }

  // Low rows have no room for them: then they are not fetched either.
  showsCalls(layout) {
    return layout.row >= LANES_FROM;
  }

  covers(view, layout, held = this.spans) {
    const [first, last] = layout.visibleRows();
    return held !== null && held.t0 <= Math.max(view.t0, 0) && held.t1 >= Math.min(view.t1, this.meta.duration)
      && held.r0 <= first && held.r1 >= last && (held.calls || !this.showsCalls(layout));
  }

  // By how much of the view a fetch is wider on either side: less where spans are many.
  margin(view, rows, calls) {
    const { meta } = this;
    const share = Math.min(1, (view.t1 - view.t0) / (meta.duration || 1));
    const inView = ((meta.spans + (calls ? meta.calls : 0)) * share * rows) / (meta.ranks.length || 1);
    return Math.min(1, Math.max(0.1, (MOST_FETCHED / Math.max(1, inView) - 1) / 3));
  }

  // Wider than the view, so that a small move needs no request. One request at a time.
  need(view, layout, done) {
    if (this.covers(view, layout) || (this.waiting && this.covers(view, layout, this.waiting))) return;
    const { meta } = this;
    const whole = meta.spans + meta.calls <= WHOLE_BELOW;
    const calls = whole || this.showsCalls(layout);
    const [first, last] = layout.visibleRows();
    const part = this.margin(view, last - first, calls);
    const span = (view.t1 - view.t0) * part;
    const t0 = whole ? 0 : Math.max(0, view.t0 - span);
    const t1 = whole ? meta.duration : Math.min(meta.duration, view.t1 + span);
    const more = Math.ceil(((last - first) * part) / 2);
    const r0 = whole ? 0 : Math.max(0, first - more);
    const r1 = whole ? meta.ranks.length : Math.min(meta.ranks.length, last + more);
    this.fetchSpans({ t0, t1, r0, r1, calls }, done);
  }

  fetchSpans(asked, done) {
    const { t0, t1, r0, r1, calls } = asked;
    if (this.request) this.request.abort();
    this.request = new AbortController();
    this.waiting = asked;
    this.columns(`window?t0=${t0}&t1=${t1}&r0=${r0}&r1=${r1}&calls=${Number(calls)}`, this.request.signal).then(
      (columns) => {
        if (this.waiting !== asked) return;
        this.spans = { ...asked, columns, ...indexed(columns, this.rowOfRank) };
        this.waiting = null;
        this.failure = null;
        done();
      },
      (error) => {
        if (error.name === "AbortError" || this.waiting !== asked) return;
        this.failure = String(error.message);
        setTimeout(() => { this.waiting = null; done(); }, RETRY_MS);
        done();
      },
    );
  }
}

export function decode(buffer) {
  const headLength = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, headLength)));
  const columns = {};
  for (const { name, type, offset, count } of head) {
    columns[name] = new ARRAYS[type](buffer, 4 + headLength + offset, count);
  }
  return columns;
}

// First and last+1 of each row, and the latest end so far of what may overlap: calls and marks.
function indexed(columns, rowOfRank) {
  return {
    reach: reachOf(columns.call_rank, columns.call_end),
    markReach: reachOf(columns.mark_rank, columns.mark_end),
    spanRows: rowRanges(columns.span_rank, rowOfRank),
    callRows: rowRanges(columns.call_rank, rowOfRank),
    markRows: rowRanges(columns.mark_rank, rowOfRank),
  };
}

function reachOf(ranks, ends) {
  const reach = new Float64Array(ends.length);
  for (let i = 0; i < reach.length; i++) {
    const sameRank = i > 0 && ranks[i] === ranks[i - 1];
    reach[i] = sameRank ? Math.max(reach[i - 1], ends[i]) : ends[i];
  }
  return reach;
}

function rowRanges(ranks, rowOfRank) {
  const ranges = Array.from({ length: rowOfRank.size }, () => [0, 0]);
  let first = 0;
  for (let i = 1; i <= ranks.length; i++) {
    if (i === ranks.length || ranks[i] !== ranks[first]) {
      if (ranks.length) ranges[rowOfRank.get(ranks[first])] = [first, i];
      first = i;
    }
  }
  return ranges;
}

function median(values) {
  const sorted = Float64Array.from(values).sort();
  return sorted.length ? sorted[sorted.length >> 1] : 0;
}
