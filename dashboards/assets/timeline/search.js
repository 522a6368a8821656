// The search box: a step, a rank, a host, a bucket, or any two of them.

const WORDS = /(step|rank|host|bucket)\s*[:=]?\s*([^\s,]+)/gi;

export class Search {
  constructor(box, source, actions) {
    Object.assign(this, { box, source, actions });
    box.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (event.key === "Escape") document.getElementById("timeline").focus();
    if (event.key !== "Enter") return;
    this.find(this.box.value.trim()).then((place) => {
      this.box.setAttribute("aria-invalid", String(place === null));
      this.box.title = place === null ? "Nothing of that name: step 20, rank 3, host node1, bucket 2." : "";
      if (place) this.actions.goTo(place);
    });
  }

  // Where it leads, or null.
  async find(text) {
    if (!text) return null;
    if (/^\d+$/.test(text)) return this.step(text);
    const words = [...text.matchAll(WORDS)];
    if (!words.length) return this.host(text);
    let place = {};
    for (const [, kind, value] of words) {
      const found = kind.toLowerCase() === "bucket" ? await this.bucket(value, place) : this[kind.toLowerCase()](value);
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

  // The bucket's next all-reduce from the middle of the view on, or of the step beside it.
  async bucket(value, place) {
    const { view } = this.actions;
    const from = place.from ?? (view.t0 + view.t1) / 2;
    const rank = place.rank ?? view.rank ?? this.source.meta.ranks[0];
    const answer = await this.source.json(`bucket/${Number.parseInt(value, 10) || 0}?rank=${rank}&from=${from}`).catch(() => null);
    if (!answer) return null;
    const margin = Math.max(answer.duration_ms * 3, 0.05);
    return { rank, call: answer.id, target: { t0: answer.begin_ms - margin, t1: answer.begin_ms + answer.duration_ms + margin } };
  }
}
