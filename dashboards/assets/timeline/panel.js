// The tooltip and the side panel. Names come from traces: they are set as text, never as HTML.

import { indexOfId } from "./bisect.js";
import { bytes, callName, duration, more } from "./text.js";

const MOST_ARRIVALS = 12;
const MOST_MARKS = 4;

export function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

export class Tooltip {
  constructor(box, source) {
    this.box = box;
    this.source = source;
  }

  hide() {
    this.box.hidden = true;
  }

  show(hit, x, y, stage) {
    this.place(this.lines(hit), x, y, stage);
  }

  // A cell of the picture of the steps.
  showCell({ row, step, cell }, x, y, stage) {
    const { meta, whole } = this.source;
    const level = cell >> 4;
    const says = level ? `${meta.phases[cell & 7]} takes longer than on the others` : "as long as the others";
    const at = `rank ${meta.ranks[row]} on ${meta.hosts[row]} · step ${whole.step_sync[step]}`;
    this.place([[says, "tip-title"], [at], ["a click shows its spans", "dim"]], x, y, stage);
  }

  place(lines, x, y, stage) {
    this.box.replaceChildren(...lines.map(([text, name]) => element("div", text, name)));
    this.box.hidden = false;
    const { offsetWidth: wide, offsetHeight: high } = this.box;
    const left = x + 16 + wide > stage.clientWidth ? x - wide - 12 : x + 16;
    const top = y + 16 + high > stage.clientHeight ? y - high - 12 : y + 16;
    this.box.style.left = `${Math.max(0, left)}px`;
    this.box.style.top = `${Math.max(0, top)}px`;
  }

  standing(index) {
    const site = this.source.standsAt(index);
    return site ? [[`stands in ${site}`]] : [];
  }

  markLines(marks) {
    const { columns } = this.source.spans;
    return marks.slice(0, MOST_MARKS).map((i) => {
      const took = duration(columns.mark_end[i] - columns.mark_begin[i]);
      return [`in ${this.source.meta.marks[columns.mark_name[i]]}  ${took}`];
    });
  }

  lines({ kind, index, marks = [] }) {
    const { columns } = this.source.spans;
    const rank = columns[`${kind}_rank`][index];
    const sync = columns[`${kind}_sync`][index];
    const at = `rank ${rank}${sync >= 0 ? ` · step ${sync}` : " · outside the steps"}`;
    const took = duration(columns[`${kind}_end`][index] - columns[`${kind}_begin`][index]);
    if (kind === "span") {
      return [[this.source.meta.phases[columns.span_phase[index]], "tip-title"], [`${took}  ${at}`], ...this.standing(index), ...this.markLines(marks)];
    }
    const op = this.source.meta.ops[columns.call_op[index]];
    const size = bytes(columns.call_bytes[index]);
    const parts = columns.call_known[index]
      ? `waits ${duration(columns.call_last[index] - columns.call_begin[index])} for rank ${columns.call_last_rank[index]}, moves ${duration(columns.call_end[index] - columns.call_last[index])}`
      : "wait and transfer are not told apart";
    return [[callName(op, columns.call_bucket[index]), "tip-title"], [`${took}  ${at}`], [`${size} · ${parts}`]];
  }
}

export class Panel {
  constructor(box, source) {
    Object.assign(this, { box, source });
  }

  clear() {
    this.box.replaceChildren(element("p", "Click a span or a collective. Shift and drag measures.", "dim"));
  }

  fail(message) {
    this.box.replaceChildren(element("p", message, "bad"));
  }

  showMeasure(from, to) {
    const [begin, end] = [Math.min(from, to), Math.max(from, to)];
    this.box.replaceChildren(list([["Measured", duration(end - begin), "strong"], ["From", duration(begin)], ["To", duration(end)]]));
  }

  showSpan(detail) {
    const rows = [
      ["Phase", detail.phase],
      ["Rank", `${detail.rank} on ${detail.host}`],
      ["Step", detail.sync ?? "outside the steps"],
      ["This span", duration(detail.duration_ms)],
    ];
    const { spans } = this.source;
    const site = spans && this.source.standsAt(indexOfId(spans.columns.span_id, detail.id));
    if (site) rows.push(["Stands in", site, "bad"]);
    if (detail.step_phase_ms !== null) {
      rows.push(
        [`All ${detail.phase} of the step`, duration(detail.step_phase_ms)],
        ["Median of the others", duration(detail.median_phase_ms)],
        ["Against the others", against(detail.step_phase_ms, detail.median_phase_ms), "strong"],
        ["Step", duration(detail.step_ms)],
        ["Step, median of the others", duration(detail.median_step_ms)],
      );
    }
    this.box.replaceChildren(list(rows));
  }

  showCall(detail, goTo) {
    const rows = [
      ["Collective", callName(detail.op, detail.bucket)],
      ["Rank", `${detail.rank} on ${detail.host}`],
      ["Step", detail.sync ?? "outside the steps"],
      ["Number", `${detail.seq} of group ${detail.group}`],
      ["Bytes", bytes(detail.nbytes)],
      ["Duration", duration(detail.duration_ms)],
      ["Waits for the last rank", duration(detail.wait_ms), "bad"],
      ["… median of the others", duration(detail.median_wait_ms)],
      ["Transfer, queue included", duration(detail.transfer_ms)],
      ["… median of the others", duration(detail.median_transfer_ms)],
      ["First to last arrival", duration(detail.spread_ms)],
      ["Last to arrive", detail.last_rank === null ? "not measured" : `rank ${detail.last_rank}`, "bad"],
    ];
    this.box.replaceChildren(list(rows), ...this.parameters(detail), this.arrivals(detail, goTo));
  }

  // Of the bucket, where it is known which it holds.
  parameters({ bucket, group, nbytes }) {
    const held = this.source.meta.buckets.find((each) => each.bucket === bucket && each.group === group && each.nbytes === nbytes);
    if (!held) return [];
    const box = element("details", undefined, "parameters");
    const names = element("ul");
    names.append(...held.names.map((name) => element("li", name)));
    box.append(element("summary", `${held.names.length} parameter${held.names.length > 1 ? "s" : ""} of ${held.model}`), names);
    return [box];
  }

  // The last ones first: they are what the others wait for.
  arrivals(detail, goTo) {
    const box = element("div", undefined, "arrivals");
    const latest = [...detail.arrivals].reverse();
    const longest = Math.max(latest[0]?.lateness_ms ?? 0, 1e-9);
    box.append(element("h3", "Arrivals, last first"));
    for (const { rank, call, lateness_ms } of latest.slice(0, MOST_ARRIVALS)) {
      const row = element("button", undefined, "arrival");
      row.type = "button";
      const bar = element("span", undefined, rank === detail.last_rank ? "arrival-bar bad" : "arrival-bar");
      bar.style.setProperty("--part", String(lateness_ms / longest));
      row.append(element("span", `rank ${rank}`), bar, element("span", more(lateness_ms)));
      row.addEventListener("click", () => goTo(rank, call));
      box.append(row);
    }
    const rest = latest.length - MOST_ARRIVALS;
    if (rest > 0) box.append(element("p", `and ${rest} earlier ones`, "dim"));
    return box;
  }
}

function against(own, others) {
  return others === null ? "not measured" : more(own - others);
}

function list(rows) {
  const box = element("dl", undefined, "facts-list");
  for (const [name, value, className] of rows) {
    const row = element("div");
    row.append(element("dt", name), element("dd", String(value), className));
    box.append(row);
  }
  return box;
}
