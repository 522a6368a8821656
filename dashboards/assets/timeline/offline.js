// The run within the page itself: a file that was exported, opened without a server.

import { indexOfId } from "./bisect.js";
import { Source } from "./data.js";

const ROUNDED_MS = 0.01; // addresses hold times to a microsecond
const MOST_DRAWN = 20_000; // spans; what is more shows as cells

export class OfflineSource extends Source {
  constructor(files) {
    super("");
    this.files = files;
    this.tiles.mostInOne = 1;
  }

  async open() {
    await super.open();
    const { t0, t1, r0, r1 } = this.files.held;
    await new Promise((done) => this.fetchSpans({ t0, t1, r0, r1, calls: true }, done));
    Object.assign(this.spans, this.files.held);
  }

  async bytes(path) {
    const packed = this.files.packed[path.split("?")[0]];
    if (packed === undefined) throw new Error(`${path}: not in this file`);
    const raw = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  }

  async json(path) {
    const [kind, id] = path.split(/[/?]/);
    if (kind === "span") return this.span(Number(id));
    if (kind === "call") return this.call(Number(id));
    if (kind === "bucket") return this.bucket(Number(id), new URLSearchParams(path.split("?")[1]));
    return JSON.parse(new TextDecoder().decode(await this.bytes(path)));
  }

  need() {}

  covers(view) {
    if (!this.spans) return false;
    const { t0, t1 } = this.spans;
    return Math.max(view.t0, 0) >= t0 - ROUNDED_MS && Math.min(view.t1, this.meta.duration) <= t1 + ROUNDED_MS;
  }

  // Single spans where the file has them, steps elsewhere.
  tier(view, layout) {
    if (!this.spans) return "steps";
    const { t0, t1, columns } = this.spans;
    const share = Math.min(1, (view.t1 - view.t0) / (t1 - t0));
    const drawn = share * (columns.span_id.length + columns.call_id.length);
    const steps = this.whole.step_sync.length > 0;
    return (this.covers(view) && drawn <= MOST_DRAWN && layout.row >= 1) || !steps ? "spans" : "steps";
  }

  at(rank) {
    return { rank, host: this.meta.hosts[this.rowOfRank.get(rank)] };
  }

  span(id) {
    const { columns: c } = this.spans;
    const i = indexOfId(c.span_id, id);
    if (i < 0) throw new Error("not in this file");
    return {
      id, ...this.at(c.span_rank[i]), sync: c.span_sync[i] >= 0 ? c.span_sync[i] : null,
      phase: this.meta.phases[c.span_phase[i]], begin_ms: c.span_begin[i],
      duration_ms: c.span_end[i] - c.span_begin[i], step_phase_ms: null,
    };
  }

  // The next of the bucket on the rank, else the last.
  bucket(number, asked) {
    const { columns: c } = this.spans;
    const fits = (name, column, i) => !asked.has(name) || column[i] === Number(asked.get(name));
    let found = -1;
    for (let i = 0; i < c.call_id.length; i++) {
      if (c.call_bucket[i] !== number || c.call_rank[i] !== Number(asked.get("rank"))) continue;
      if (!fits("group", c.call_group, i) || !fits("bytes", c.call_bytes, i)) continue;
      found = i;
      if (c.call_begin[i] >= Number(asked.get("from"))) break;
    }
    if (found < 0) throw new Error("not in this file");
    return this.call(c.call_id[found]);
  }

  call(id) {
    const { columns: c } = this.spans;
    const i = indexOfId(c.call_id, id);
    if (i < 0) throw new Error("not in this file");
    const arrivals = [];
    for (let j = 0; j < c.call_id.length; j++) {
      if (c.call_seq[j] !== c.call_seq[i] || c.call_group[j] !== c.call_group[i] || c.call_op[j] !== c.call_op[i]) continue;
      arrivals.push({ rank: c.call_rank[j], call: c.call_id[j], begin_ms: c.call_begin[j] });
    }
    arrivals.sort((a, b) => a.begin_ms - b.begin_ms);
    const first = arrivals[0].begin_ms;
    for (const each of arrivals) each.lateness_ms = each.begin_ms - first;
    const known = Boolean(c.call_known[i]);
    return {
      id, ...this.at(c.call_rank[i]), sync: c.call_sync[i] >= 0 ? c.call_sync[i] : null,
      op: this.meta.ops[c.call_op[i]], bucket: c.call_bucket[i] >= 0 ? c.call_bucket[i] : null,
      group: c.call_group[i], seq: c.call_seq[i], nbytes: c.call_bytes[i], begin_ms: c.call_begin[i],
      duration_ms: c.call_end[i] - c.call_begin[i],
      wait_ms: known ? c.call_last[i] - c.call_begin[i] : null,
      transfer_ms: known && c.call_timed[i] ? c.call_end[i] - c.call_last[i] : null,
      median_wait_ms: null, median_transfer_ms: null,
      last_rank: known ? c.call_last_rank[i] : null,
      spread_ms: known ? arrivals[arrivals.length - 1].lateness_ms : null, arrivals,
    };
  }
}

// A file has no server to ask for a place: it is kept behind the #.
export const inHash = {
  read: () => `?${location.hash.slice(1)}`,
  write: (query, isNew) => history[isNew ? "pushState" : "replaceState"](null, "", `#${query.slice(1)}`),
};
