// The search box: a step, a rank, a host, a bucket, a parameter in one, or several of them.

import { element } from "./panel.js";

const WORDS = /(?<![^\s,])(?:(step|rank|bucket)[\s:=]*(\d+)(?![^\s,])|(host|parameter)[\s:=]+([^\s,]+))/gi;
const ORDER = ["step", "rank", "host", "bucket", "parameter"]; // a bucket is looked for in the step, on the rank
const FINDS = "step 20, rank 3, host node1, bucket 2, a parameter's name";

export class Search {
  constructor(box, source, actions) {
    Object.assign(this, { box, source, actions });
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("input", () => this.say(true));
    this.suggest(document.getElementById("go-to-known"));
  }

  // What the browser completes while the reader types.
  suggest(known) {
    const { buckets, hosts } = this.source.meta;
    const words = [...new Set(hosts)].map((host) => `host ${host}`);
    for (const { bucket, names } of buckets) words.push(`bucket ${bucket}`, ...names);
    known.replaceChildren(...[...new Set(words)].map((word) => {
      const option = element("option");
      option.value = word;
      return option;
    }));
  }

  // Whether the text leads somewhere; said beside the box, too.
  say(leads) {
    this.box.setAttribute("aria-invalid", String(!leads));
    const says = document.getElementById("go-to-says");
    says.hidden = leads;
    says.textContent = leads ? "" : `Nothing of that name in this run. It finds: ${FINDS}.`;
  }

  key(event) {
    if (event.key === "Escape") document.getElementById("timeline").focus();
    if (event.key !== "Enter") return;
    this.find(this.box.value.trim()).then((place) => {
      this.say(place !== null);
      if (place) this.actions.goTo(place);
    });
  }

  // Where it leads, or null.
  async find(text) {
    if (!text) return null;
    if (/^\d+$/.test(text)) return this.step(text);
    const words = [...text.matchAll(WORDS)].map(([, kind, number, named, name]) => [(kind ?? named).toLowerCase(), number ?? name]);
    const name = text.replace(WORDS, "").replace(/[\s,]+/g, " ").trim(); // of a host or a parameter
    if (name) words.push([this.host(name) ? "host" : "parameter", name]);
    words.sort(([a], [b]) => ORDER.indexOf(a) - ORDER.indexOf(b));
    let place = {};
    for (const [kind, value] of words) {
      const found = await this[kind](value, place);
      if (!found) return null;
      place = { ...place, ...found };
    }
    return place;
  }

  step(value) {
    const target = this.actions.view.aroundStep(Number(value));
    return target && { target, from: this.source.whole.step_begin[this.source.indexOfSync.get(Number(value))] };
  }

  rank(value) {
    const rank = Number(value);
    return this.source.rowOfRank.has(rank) ? { rank } : null;
  }

  host(value) {
    const wanted = value.toLowerCase();
    const { hosts, ranks } = this.source.meta;
    let row = hosts.findIndex((host) => host.toLowerCase() === wanted);
    if (row < 0) row = hosts.findIndex((host) => host.toLowerCase().includes(wanted));
    return row < 0 ? null : { rank: ranks[row] };
  }

  // The bucket that holds a parameter: one of this name, else the first whose name has it in it.
  async parameter(value, place) {
    const wanted = value.toLowerCase();
    const holds = (fits) => this.source.meta.buckets.find(({ names }) => names.some((name) => fits(name.toLowerCase())));
    const found = holds((name) => name === wanted) ?? holds((name) => name.includes(wanted));
    return found ? this.bucket(found.bucket, place, `&group=${found.group}&bytes=${found.nbytes}`) : null;
  }

  // The bucket's next all-reduce from the middle of the view on, or of the step beside it.
  async bucket(value, place, which = "") {
    const { view } = this.actions;
    const from = place.from ?? (view.t0 + view.t1) / 2;
    const rank = place.rank ?? view.rank ?? this.source.meta.ranks[0];
    const answer = await this.source.json(`bucket/${Number(value)}?rank=${rank}&from=${from}${which}`).catch(() => null);
    if (!answer) return null;
    const margin = Math.max(answer.duration_ms * 3, 0.05);
    return { rank, call: answer.id, target: { t0: answer.begin_ms - margin, t1: answer.begin_ms + answer.duration_ms + margin } };
  }
}
