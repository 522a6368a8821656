// Paints what lies over the rows: a finding's box, the selection, arrivals, marks, a measure.

import { indexOfId } from "./bisect.js";
import { GUTTER, RULER } from "./layout.js";
import { duration, more } from "./text.js";

const MOST_DOTS = 256; // arrivals with a dot of their own; the last always has one

export class Overlay {
  constructor(context, source, view, layout, theme) {
    Object.assign(this, { context, source, view, layout, theme });
    this.detail = null; // of the selected call: its arrivals are joined
    this.measure = null; // [from, to] in ms
  }

  paint(tier) {
    this.findingBox();
    this.selection(tier);
    this.measured();
  }

  // Over the rulers, too.
  above() {
    const { context: c, layout, theme, view } = this;
    for (const [index, at] of view.marks.entries()) {
      const x = layout.x(at);
      if (x < GUTTER || x > layout.width) continue;
      c.fillStyle = theme.accent;
      c.fillRect(x - 0.5, 20, 1.5, layout.height - 20);
      c.beginPath();
      c.roundRect(x - 8, 20, 17, 15, 3);
      c.fill();
      c.fillStyle = theme.ground;
      c.textAlign = "center";
      c.fillText(String(index + 1), x + 0.5, 28);
      c.textAlign = "left";
    }
  }

  measured() {
    if (!this.measure) return;
    const { context: c, layout, theme } = this;
    const [a, b] = this.measure.map((at) => layout.x(at)).sort((one, other) => one - other);
    c.fillStyle = theme.accent;
    c.globalAlpha = 0.15;
    c.fillRect(a, RULER, b - a, layout.height - RULER);
    c.globalAlpha = 1;
    c.fillRect(a, RULER, 1, layout.height - RULER);
    c.fillRect(b, RULER, 1, layout.height - RULER);
    this.tag(duration(Math.abs(this.measure[1] - this.measure[0])), (a + b) / 2, RULER + 14, theme.accent);
  }

  tag(text, x, y, colour) {
    const { context: c, layout, theme } = this;
    const wide = c.measureText(text).width + 12;
    const left = Math.min(Math.max(x - wide / 2, GUTTER), layout.width - wide);
    c.fillStyle = colour;
    c.beginPath();
    c.roundRect(left, y - 9, wide, 18, 4);
    c.fill();
    c.fillStyle = theme.ground;
    c.fillText(text, left + 6, y + 0.5);
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
      const end = finding.hangs && source.meta.stands ? source.meta.duration : source.whole.step_end[b];
      const x1 = Math.min(layout.x(end), layout.width + 4);
      for (const rank of finding.culprits) {
        const row = source.rowOfRank.get(rank);
        if (row === undefined) continue;
        const high = Math.max(3, layout.row - 1);
        c.strokeRect(x0, layout.top(row) + 0.5, x1 - x0, high);
      }
    }
    c.lineWidth = 1;
  }

  selection(tier) {
    const { view } = this;
    if (!view.sel) return;
    if (view.sel.kind === "call") this.arrivals();
    const box = tier === "spans" && this.source.spans ? this.boxOf(view.sel) : null;
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
    this.clockError(points);
    c.strokeStyle = theme.text;
    c.lineWidth = layout.row < 6 ? 1.25 : 1.75;
    c.beginPath();
    for (const { row, x } of points) {
      const top = layout.top(row);
      c.lineTo(x, top);
      c.lineTo(x, top + layout.row);
    }
    c.stroke();
    c.lineWidth = 1;
    const last = points.find((point) => point.rank === detail.last_rank);
    if (layout.row >= 6 && points.length <= MOST_DOTS) for (const point of points) if (point !== last) this.dot(point, 3, theme.text);
    if (last) this.nameLast(last);
  }

  // By how much the arrivals may be off, where the hosts' clocks are only known to within an error.
  clockError(points) {
    const { context: c, layout, source, theme, view } = this;
    const px = ((source.meta.clock_error ?? 0) / (view.t1 - view.t0)) * layout.plotWidth;
    if (px < 2) return;
    c.fillStyle = theme.dim;
    c.globalAlpha = 0.25;
    for (const { row, x } of points) c.fillRect(x - px, layout.top(row), 2 * px, layout.row);
    c.globalAlpha = 1;
  }

  height(row) {
    const { calls } = this.layout.lanes(row);
    return calls ? calls[0] + calls[1] / 2 : this.layout.top(row) + this.layout.row / 2;
  }

  dot({ row, x }, size, colour) {
    const { context: c } = this;
    c.fillStyle = colour;
    c.beginPath();
    c.arc(x, this.height(row), size, 0, 2 * Math.PI);
    c.fill();
  }

  nameLast(point) {
    const { context: c, layout, theme } = this;
    this.dot(point, 5.5, theme.bad);
    const text = `rank ${point.rank} arrives last, ${more(point.lateness_ms)}`;
    const wide = c.measureText(text).width + 12;
    const right = point.x + 12 + wide <= layout.width;
    this.tag(text, right ? point.x + 12 + wide / 2 : point.x - 12 - wide / 2, this.height(point.row), theme.bad);
  }
}
