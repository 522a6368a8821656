// What is on screen: a stretch of time, a scroll position, a rank and a selection. The address
// bar holds it, so that reload, back and a copied link show the same.

const LEAST_MS = 0.02;
const PLAIN = new Set(["t0", "t1", "rank", "sync", "sel", "finding", "tall", "top", "marks"]);
const MOST_MARKS = 20;

const inAddress = {
  read: () => location.search,
  write: (query, isNew) => history[isNew ? "pushState" : "replaceState"](null, "", location.pathname + query),
};

export class View {
  constructor(source, place = inAddress) {
    this.place = place;
    this.source = source;
    this.t0 = 0;
    this.t1 = source.meta.duration || 1;
    this.scroll = 0;
    this.tall = 1; // how much taller than fits the rows are
    this.top = null; // the row at the upper edge that the address asks for
    this.marks = []; // moments that the reader marked, in ms
    this.rank = null;
    this.sel = null; // { kind: "span" | "call", id }
    this.finding = null;
    this.timer = null;
    this.animation = 0;
    this.rowPx = () => 1; // set by the layout's owner
  }

  whole() {
    return { t0: 0, t1: this.source.meta.duration || 1 };
  }

  // What a link without a place shows: the steps, with a little of what is before and after.
  steps() {
    const { step_begin, step_end } = this.source.whole;
    if (!step_begin.length || this.source.meta.stands) return this.whole();
    const [begin, end] = [step_begin[0], step_end[step_end.length - 1]];
    const margin = (end - begin) * 0.01;
    return { t0: begin - margin, t1: end + margin };
  }

  set(t0, t1) {
    const all = this.source.meta.duration || 1;
    const span = Math.min(Math.max(t1 - t0, LEAST_MS), all * 1.1);
    const slack = span * 0.3; // a little beyond both ends, so that the ends can be looked at
    const begin = Math.min(Math.max((t0 + t1 - span) / 2, -slack), all + slack - span);
    this.t0 = span >= all ? Math.min(Math.max(begin, all - span), 0) : begin;
    this.t1 = this.t0 + span;
  }

  zoom(factor, at) {
    const all = this.source.meta.duration || 1;
    const span = Math.min(Math.max((this.t1 - this.t0) * factor, LEAST_MS), all);
    const share = (at - this.t0) / (this.t1 - this.t0);
    this.set(at - share * span, at - share * span + span);
  }

  pan(ms) {
    this.set(this.t0 + ms, this.t1 + ms);
  }

  // Moves there in a fifth of a second, at once where less motion is wished.
  go(target, redraw) {
    cancelAnimationFrame(this.animation);
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.set(target.t0, target.t1);
      redraw();
      return;
    }
    const from = { t0: this.t0, t1: this.t1 };
    const began = performance.now();
    const frame = (now) => {
      const part = Math.min(1, (now - began) / 200);
      const eased = 1 - (1 - part) ** 3;
      this.set(from.t0 + (target.t0 - from.t0) * eased, from.t1 + (target.t1 - from.t1) * eased);
      redraw();
      if (part < 1) this.animation = requestAnimationFrame(frame);
    };
    this.animation = requestAnimationFrame(frame);
  }

  stop() {
    cancelAnimationFrame(this.animation);
  }

  // The stretch that shows a step with its neighbours.
  aroundStep(sync) {
    const index = this.source.indexOfSync.get(sync);
    if (index === undefined) return null;
    const begin = this.source.whole.step_begin[index];
    const end = this.source.whole.step_end[index];
    const margin = (end - begin) * 0.75;
    return { t0: begin - margin, t1: end + margin };
  }

  // Reads a query string; returns the stretch to show, or null where it names none.
  read(query) {
    const given = new URLSearchParams(query);
    this.rank = integer(given.get("rank"));
    this.finding = given.get("finding");
    this.sel = selection(given.get("sel"));
    const tall = Number.parseFloat(given.get("tall"));
    this.tall = tall >= 1 && tall <= 1000 ? tall : 1;
    const top = Number.parseFloat(given.get("top"));
    this.top = top >= 0 ? top : null;
    this.marks = (given.get("marks") ?? "").split(",").map(Number.parseFloat).filter(Number.isFinite).slice(0, MOST_MARKS);
    const t0 = Number.parseFloat(given.get("t0"));
    const t1 = Number.parseFloat(given.get("t1"));
    if (Number.isFinite(t0) && Number.isFinite(t1) && t1 > t0) return { t0, t1 };
    const sync = integer(given.get("sync") ?? given.get("step"));
    return sync === null ? null : this.aroundStep(sync);
  }

  // `row` is the height of a row in pixels.
  query(row) {
    const query = new URLSearchParams();
    query.set("t0", this.t0.toFixed(3));
    query.set("t1", this.t1.toFixed(3));
    if (this.rank !== null) query.set("rank", String(this.rank));
    if (this.sel) query.set("sel", `${this.sel.kind}-${this.sel.id}`);
    if (this.tall > 1) query.set("tall", this.tall.toFixed(2));
    if (this.scroll > 0) query.set("top", (this.scroll / row).toFixed(2));
    if (this.marks.length) query.set("marks", this.marks.map((at) => at.toFixed(3)).join(","));
    if (this.finding) query.set("finding", this.finding);
    return `?${query}${others()}`;
  }

  // At this moment; where one is close by, that one goes.
  mark(at) {
    const near = (this.t1 - this.t0) / 150;
    const other = this.marks.findIndex((each) => Math.abs(each - at) < near);
    if (other >= 0) this.marks.splice(other, 1);
    else if (this.marks.length < MOST_MARKS) this.marks = [...this.marks, at].sort((a, b) => a - b);
  }

  // A move replaces the entry of the history; a jump or a selection makes a new one.
  keep(isNew) {
    this.forget();
    this.place.write(this.query(this.rowPx()), isNew);
  }

  // A move that was not kept yet belongs to the entry that is about to be left.
  settle() {
    if (this.timer !== null) this.keep(false);
  }

  forget() {
    clearTimeout(this.timer);
    this.timer = null;
  }

  keepSoon() {
    if (this.timer === null) this.timer = setTimeout(() => this.keep(false), 250);
  }
}

function others() {
  let kept = "";
  for (const [name, value] of new URLSearchParams(location.search)) {
    if (!PLAIN.has(name) && name !== "step") kept += `&${encodeURIComponent(name)}=${encodeURIComponent(value)}`;
  }
  return kept;
}

function integer(text) {
  return text !== null && /^\d{1,9}$/.test(text) ? Number(text) : null;
}

function selection(text) {
  const match = /^(span|call)-(\d{1,10})$/.exec(text ?? "");
  return match ? { kind: match[1], id: Number(match[2]) } : null;
}
