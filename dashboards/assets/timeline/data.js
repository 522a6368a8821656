// Fetches the run's columns and keeps the stretch that was fetched last.

const ARRAYS = {
  u1: Uint8Array, u2: Uint16Array, u4: Uint32Array,
  i2: Int16Array, i4: Int32Array, f4: Float32Array, f8: Float64Array,
};
const WHOLE_BELOW = 60_000; // spans of a run that is fetched at once
const MOST_IN_VIEW = 15_000; // spans drawn singly; above it the cells of the steps are shown
const LEAST_STEP_PX = 6; // a step narrower than this shows as one cell

export class Source {
  constructor(base) {
    this.base = base;
    this.meta = null;
    this.whole = null;
    this.spans = null; // { t0, t1, columns, byRank }
    this.failure = null;
    this.request = null;
    this.waiting = null;
  }

  async open() {
    [this.meta, this.whole] = await Promise.all([this.json("meta"), this.columns("whole")]);
    this.rowOfRank = new Map(this.meta.ranks.map((rank, row) => [rank, row]));
    this.indexOfSync = new Map(Array.from(this.whole.step_sync, (sync, index) => [sync, index]));
    this.medianStep = median(this.whole.step_ms) || this.meta.duration || 1;
  }

  async json(path) {
    const response = await fetch(this.base + path);
    if (!response.ok) throw new Error(`${path}: ${response.status}`);
    return response.json();
  }

  async columns(path, signal) {
    const response = await fetch(this.base + path, { signal });
    if (!response.ok) throw new Error(`${path}: ${response.status}`);
    return decode(await response.arrayBuffer());
  }

  // Whether single spans are to be seen, or only what each step was like.
  singly(view, width) {
    const share = (view.t1 - view.t0) / (this.meta.duration || 1);
    const stepPx = (this.medianStep * width) / (view.t1 - view.t0);
    return share * this.meta.spans <= MOST_IN_VIEW && stepPx >= LEAST_STEP_PX;
  }

  covers(view) {
    return this.spans !== null && this.spans.t0 <= Math.max(view.t0, 0)
      && this.spans.t1 >= Math.min(view.t1, this.meta.duration);
  }

  // Three windows wide, so that a small move needs no request. One request at a time.
  need(view, done) {
    if (this.covers(view)) return;
    const whole = this.meta.spans <= WHOLE_BELOW;
    const span = view.t1 - view.t0;
    const t0 = whole ? 0 : Math.max(0, view.t0 - span);
    const t1 = whole ? this.meta.duration : Math.min(this.meta.duration, view.t1 + span);
    if (this.waiting && this.waiting.t0 <= Math.max(view.t0, 0) && this.waiting.t1 >= Math.min(view.t1, this.meta.duration)) return;
    if (this.request) this.request.abort();
    this.request = new AbortController();
    this.waiting = { t0, t1 };
    this.columns(`window?t0=${t0}&t1=${t1}`, this.request.signal).then(
      (columns) => {
        this.spans = { t0, t1, columns, ...indexed(columns, this.rowOfRank) };
        this.waiting = null;
        this.failure = null;
        done();
      },
      (error) => {
        if (error.name === "AbortError") return;
        this.waiting = null;
        this.failure = String(error.message);
        done();
      },
    );
  }
}

function decode(buffer) {
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
      ranges[rowOfRank.get(ranks[first])] = [first, i];
      first = i;
    }
  }
  return ranges;
}

// The first index in [low, high) whose value is above the limit.
export function firstAbove(values, limit, low, high) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

function median(values) {
  const sorted = Float64Array.from(values).sort();
  return sorted.length ? sorted[sorted.length >> 1] : 0;
}
