// The view as a table, for those who cannot see the canvas and for copying numbers.

import { duration } from "./text.js";
import { element } from "./panel.js";

export class Twin {
  constructor(box, source, view, layout) {
    Object.assign(this, { box, source, view, layout });
    this.shown = null;
    this.timer = null;
  }

  toggle() {
    this.box.hidden = !this.box.hidden;
    this.shown = null;
    return !this.box.hidden;
  }

  get query() {
    const [r0, r1] = this.layout.visibleRows();
    return `t0=${this.view.t0.toFixed(3)}&t1=${this.view.t1.toFixed(3)}&r0=${r0}&r1=${r1}`;
  }

  // Soon: a move makes many views.
  refresh() {
    if (this.box.hidden || this.shown === this.query) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch(this.query), 150);
  }

  async fetch(query) {
    if (this.shown === query) return;
    this.shown = query;
    let table;
    try {
      table = await this.source.json(`table?${query}`);
    } catch (error) {
      this.box.replaceChildren(element("p", `The table could not be fetched: ${error.message}`, "bad"));
      return;
    }
    if (this.shown === query) this.fill(table);
  }

  fill({ t0, t1, steps, phases, rows }) {
    const table = element("table", undefined, "numbers-table");
    const from = steps ? `, steps ${steps[0]} to ${steps[1]}` : "";
    table.append(element("caption", `Milliseconds of each rank from ${duration(t0)} to ${duration(t1)}${from}`));
    const head = element("tr");
    for (const name of ["rank", "host", ...phases, "worst step", "over the others"]) {
      const cell = element("th", name);
      cell.scope = "col";
      head.append(cell);
    }
    const body = element("tbody");
    for (const row of rows) body.append(line(row));
    const top = element("thead");
    top.append(head);
    table.append(top, body);
    this.box.replaceChildren(table);
  }
}

function line({ rank, host, ms, worst_sync, excess_ms }) {
  const row = element("tr");
  const name = element("th", `rank ${rank}`);
  name.scope = "row";
  row.append(name, element("td", host));
  for (const value of ms) row.append(element("td", value.toFixed(2)));
  row.append(element("td", worst_sync === null ? "–" : String(worst_sync)));
  row.append(element("td", excess_ms === null ? "–" : duration(excess_ms)));
  return row;
}
