// Ties the parts of the timeline together: what is in view, what is selected, what is fetched.

import { firstAbove, indexOfId } from "./bisect.js";
import { Painter } from "./draw.js";
import { listen } from "./input.js";
import { GUTTER, Layout } from "./layout.js";
import { Minimap } from "./minimap.js";
import { Exports } from "./exports.js";
import { inHash } from "./offline.js";
import { Panel, Tooltip } from "./panel.js";
import { Search } from "./search.js";
import { Twin } from "./table.js";
import { Theme } from "./theme.js";
import { View } from "./view.js";

const SAYS = {
  steps: "One cell a step: the stronger its colour, the longer the rank took than the others; the colour is the phase. A click shows its spans.",
  phases: "The phase of each rank at each moment, strong where it made the rank late. Taller rows (E) or a closer look (W) show single spans.",
  spans: "Single spans: above, the training thread; below, its collectives, pale while they wait for the last rank. A click tells more.",
};
const LOADS_MS = 300; // what takes less is not worth a word
const byId = (id) => document.getElementById(id);

export class Timeline {
  constructor(canvas, source) {
    this.canvas = canvas;
    this.source = source;
    this.view = globalThis.ddpOffline ? new View(source, inHash) : new View(source);
    this.theme = new Theme(source.meta.colours);
    this.layout = new Layout(source, this.view);
    this.painter = new Painter(canvas, source, this.view, this.layout, this.theme);
    this.minimap = new Minimap(byId("minimap"), source, this.view, this.theme, () => this.moved());
    this.tooltip = new Tooltip(byId("tooltip"), source);
    this.panel = new Panel(byId("selection"), source);
    this.finder = new Search(byId("go-to"), source, this);
    this.twin = new Twin(byId("twin"), source, this.view, this.layout);
    this.frame = 0;
    this.slow = null; // timer of what takes long to come
    this.pointer = null; // x of the pointer over the rows
    this.view.rowPx = () => this.layout.row;
    this.findings = source.meta.findings.filter((finding) => finding.query);
  }

  start() {
    this.canvas.timeline = this; // for tests and benchmarks
    listen(this.canvas, this.layout, this.view, this);
    new ResizeObserver(() => this.resize()).observe(this.canvas.parentElement);
    new MutationObserver(() => { this.theme.refresh(); this.minimap.refresh(); this.redraw(); })
      .observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    window.addEventListener("popstate", () => this.restore(false));
    byId("zoom-in").addEventListener("click", () => { this.view.zoom(1 / 1.5, this.middle()); this.moved(); });
    byId("zoom-out").addEventListener("click", () => { this.view.zoom(1.5, this.middle()); this.moved(); });
    byId("whole-run").addEventListener("click", () => this.whole());
    byId("help").addEventListener("click", () => this.help());
    new Exports(byId("export"), this);
    byId("table").addEventListener("click", () => this.table());
    byId("finding-links").addEventListener("click", (event) => this.followed(event));
    this.resize();
    this.restore(true);
    this.canvas.focus({ preventScroll: true, focusVisible: false });
  }

  // The run has grown. Who looks at its end goes on to do so; all others keep their place.
  async grow() {
    const { source, view } = this;
    const before = source.meta.duration;
    const span = view.t1 - view.t0;
    const [sawWhole, sawEnd] = [span >= before * 0.95, view.t1 >= before * 0.995];
    await source.reopen();
    if (view.sel) { // spans are numbered anew
      view.sel = null;
      this.showSelection(false);
    }
    this.findings = source.meta.findings.filter((finding) => finding.query);
    this.painter.refresh();
    this.minimap.refresh();
    if (sawWhole) view.set(view.t0, source.meta.duration * 1.01);
    else if (sawEnd) view.set(source.meta.duration * 1.002 - span, source.meta.duration * 1.002);
    this.layout.fitRows();
    this.canvas.dataset.grown = String(source.meta.duration);
    this.verdict();
    this.redraw();
  }

  // What is to be read first, on top of the side panel, where it is new.
  verdict() {
    const box = byId("verdict");
    const first = this.source.meta.findings[0];
    box.hidden = !first || first.severity !== "error";
    if (first) box.textContent = first.message;
  }

  middle() {
    return (this.view.t0 + this.view.t1) / 2;
  }

  resize() {
    this.painter.resize();
    this.minimap.resize();
    this.redraw();
  }

  // What the address says, at the beginning and after back or forward.
  restore(isFirst) {
    const { view } = this;
    view.stop();
    view.forget();
    const asked = view.read(view.place.read());
    const target = asked ?? view.steps();
    view.set(target.t0, target.t1);
    this.placeRows();
    this.showSelection(asked === null);
    this.markFinding();
    this.redraw();
    if (isFirst) view.keep(false);
  }

  // The rows that the address asks for; a rank that a link names is shown so that it can be read.
  placeRows() {
    const { layout, view } = this;
    layout.fitRows();
    if (view.top !== null) {
      view.scroll = view.top * layout.row;
      layout.clampScroll();
    } else if (view.rank !== null) layout.focus(view.rank);
  }

  redraw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      const complete = this.fetch();
      this.painter.paint();
      this.minimap.paint();
      this.say(complete);
    });
  }

  // Asks for what is in view; true where all of it is there.
  fetch() {
    const { layout, source, view } = this;
    const again = () => this.redraw();
    this.tier = source.tier(view, layout);
    if (this.tier !== "spans") return source.tiles.want(this.painter.picture.tiles(this.tier), again);
    source.need(view, layout, again);
    return source.covers(view, layout);
  }

  // For tests and for readers: what is shown, and whether all of it has arrived.
  say(complete) {
    const failure = this.source.failure ?? this.source.tiles.failure;
    if (failure) this.tell(`A part of the run could not be fetched: ${failure}`);
    else if (complete) this.tell(SAYS[this.tier]);
    else this.slow ??= setTimeout(() => this.tell("Loading …"), LOADS_MS);
    this.canvas.dataset.state = complete ? "complete" : "loading";
    this.canvas.dataset.shows = this.tier;
    if (complete) this.twin.refresh();
  }

  tell(text) {
    clearTimeout(this.slow);
    this.slow = null;
    const note = byId("timeline-state");
    if (note.textContent !== text) note.textContent = text;
  }

  // The moment under the pointer, else the one given.
  at(other) {
    return this.pointer === null ? other : this.layout.ms(this.pointer);
  }

  mark(at) {
    this.view.mark(at);
    this.view.keep(true);
    this.redraw();
  }

  measure(from, to) {
    this.painter.overlay.measure = [from, to];
    this.panel.showMeasure(from, to);
    this.redraw();
  }

  search() {
    byId("go-to").focus();
  }

  table() {
    const open = this.twin.toggle();
    byId("table").setAttribute("aria-expanded", String(open));
    this.redraw();
  }

  moved() {
    this.tooltip.hide();
    this.redraw();
    this.view.keepSoon();
  }

  hover(x, y) {
    if (this.tier === "steps" && x >= GUTTER) {
      this.hoverCell(x, y);
      return;
    }
    const hit = this.layout.hit(x, y);
    this.canvas.style.cursor = hit ? "pointer" : x < GUTTER ? "default" : "grab";
    if (hit) this.tooltip.show(hit, x + this.canvas.offsetLeft, y + this.canvas.offsetTop, this.canvas.parentElement);
    else this.tooltip.hide();
  }

  hoverCell(x, y) {
    const found = this.painter.picture.cellAt(x, y);
    this.canvas.style.cursor = found ? "pointer" : "grab";
    if (!found) this.tooltip.hide();
    else this.tooltip.showCell(found, x + this.canvas.offsetLeft, y + this.canvas.offsetTop, this.canvas.parentElement);
  }

  leave() {
    this.pointer = null;
    this.tooltip.hide();
  }

  click(x, y) {
    const row = this.layout.rowAt(y);
    if (x < GUTTER && row !== null) {
      const rank = this.source.meta.ranks[row];
      this.view.rank = this.view.rank === rank ? null : rank;
      this.view.keep(true);
      this.redraw();
      return;
    }
    if (this.tier !== "spans") {
      this.closer(x, y, row);
      return;
    }
    const hit = this.layout.hit(x, y);
    if (hit) this.select(hit.kind, this.source.spans.columns[`${hit.kind}_id`][hit.index]);
    else if (this.view.sel) this.clear();
  }

  // From many spans to the single ones of a rank and step.
  closer(x, y, row) {
    const { meta, whole } = this.source;
    const found = this.tier === "steps" ? this.painter.picture.cellAt(x, y) : null;
    const step = found ? found.step : firstAbove(whole.step_end, this.layout.ms(x), 0, whole.step_end.length);
    const target = this.view.aroundStep(whole.step_sync[step]);
    const chosen = found ? found.row : row;
    if (target && chosen !== null) this.goTo({ rank: meta.ranks[chosen], target });
  }

  select(kind, id) {
    this.view.settle();
    this.view.sel = { kind, id };
    this.view.keep(true);
    this.showSelection(false);
  }

  clear() {
    if (this.painter.overlay.measure) {
      this.painter.overlay.measure = null;
      this.panel.clear();
      this.redraw();
    }
    if (!this.view.sel && !this.view.finding) return;
    this.view.sel = null;
    this.view.finding = null;
    this.view.keep(true);
    this.showSelection(false);
    this.markFinding();
  }

  async showSelection(fit) {
    const { sel } = this.view;
    this.painter.overlay.detail = null;
    this.redraw();
    if (!sel) {
      this.panel.clear();
      return;
    }
    let detail;
    try {
      detail = await this.source.json(`${sel.kind}/${sel.id}`);
    } catch (error) {
      this.panel.fail("The address selects a span that this run does not have.");
      return;
    }
    if (this.view.sel !== sel) return; // another one was selected meanwhile
    this.painter.overlay.detail = detail;
    if (sel.kind === "span") this.panel.showSpan(detail);
    else this.panel.showCall(detail, (rank, call) => this.toCall(rank, call));
    if (fit) this.fit();
    this.redraw();
  }

  toCall(rank, call) {
    this.layout.show(rank);
    this.select("call", call);
  }

  fit() {
    const { detail } = this.painter.overlay;
    if (!detail) return;
    const margin = Math.max(detail.duration_ms * 0.5, 0.05);
    this.jump({ t0: detail.begin_ms - margin, t1: detail.begin_ms + detail.duration_ms + margin });
  }

  whole() {
    this.jump(this.view.whole());
  }

  jump(target) {
    this.view.go(target, () => this.moved());
  }

  neighbour(step) {
    const { sel } = this.view;
    if (!sel || !this.source.spans) return;
    const { columns } = this.source.spans;
    const index = indexOfId(columns[`${sel.kind}_id`], sel.id) + step;
    const rank = columns[`${sel.kind}_rank`];
    if (index < 0 || index >= rank.length || rank[index] !== rank[index - step]) return;
    const [begin, end] = [columns[`${sel.kind}_begin`][index], columns[`${sel.kind}_end`][index]];
    if (begin < this.view.t0 || end > this.view.t1) {
      const half = (this.view.t1 - this.view.t0) / 2;
      this.view.set((begin + end) / 2 - half, (begin + end) / 2 + half);
    }
    this.select(sel.kind, columns[`${sel.kind}_id`][index]);
  }

  finding(step) {
    if (!this.findings.length) return;
    const now = this.findings.findIndex((each) => each.id === this.view.finding);
    const next = now < 0 ? (step > 0 ? 0 : this.findings.length - 1) : now + step;
    this.open(this.findings[(next + this.findings.length) % this.findings.length]);
  }

  followed(event) {
    const link = event.target.closest("a[data-finding]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    this.open(this.findings.find((each) => each.id === link.dataset.finding));
  }

  open(finding) {
    this.view.settle();
    const { marks, tall } = this.view;
    const target = this.view.read(`?${finding.query}`) ?? this.view.steps();
    Object.assign(this.view, { marks, tall });
    this.view.place.write(`?${finding.query}`, true);
    if (this.view.rank !== null) this.layout.focus(this.view.rank);
    this.showSelection(false);
    this.markFinding();
    this.jump(target);
  }

  // A place that was searched for: any of a step, a rank and a call.
  goTo({ target = null, rank = null, call = null }) {
    this.view.settle();
    if (rank !== null) {
      this.view.rank = rank;
      this.layout.focus(rank);
    }
    this.view.keep(true);
    if (call !== null) this.select("call", call);
    if (target) this.jump(target);
    else this.moved();
    this.canvas.focus({ preventScroll: true });
  }

  markFinding() {
    for (const link of document.querySelectorAll("[data-finding]")) {
      if (link.dataset.finding === this.view.finding) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }

  help() {
    byId("help-panel").classList.toggle("open");
  }
}

