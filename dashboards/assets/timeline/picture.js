// Paints the two tiers of many spans cell by cell into an image: steps by blame, times by phase.

import { firstAbove } from "./bisect.js";
import { GUTTER, RULER } from "./layout.js";
import { blamePicture, levelOf, phasePicture, TILE } from "./tiles.js";

const GAP_FROM = 6; // rows as tall as this have a hair of ground between them

export class Picture {
  constructor(source, view, layout, theme) {
    Object.assign(this, { source, view, layout, theme });
    this.sheet = document.createElement("canvas");
    this.context = this.sheet.getContext("2d");
    this.image = null;
  }

  // The tiles in view, from left to right.
  tiles(tier) {
    const { picture, first, last, rows } = this.plan(tier);
    const [top, bottom] = this.layout.visibleRows();
    const seen = ({ at, count }) => at * this.each < bottom && (at + count) * this.each > top;
    const found = [];
    for (let tile = Math.floor(first / TILE); tile <= Math.floor((last - 1) / TILE); tile++) {
      found.push(...picture.strips(tile, rows).filter(seen));
    }
    return found;
  }

  plan(tier) {
    this.each = Math.max(1, Math.ceil(1 / this.layout.row - 1e-9));
    return tier === "steps" ? this.stepPlan() : this.phasePlan();
  }

  // From pixel columns to columns of the picture: [from, to) of each pixel.
  stepPlan() {
    const { layout, source, view } = this;
    const { step_begin, step_end } = source.whole;
    const count = step_begin.length;
    const width = Math.max(1, Math.round(layout.plotWidth));
    const from = new Int32Array(width);
    const to = new Int32Array(width);
    const msPerPx = (view.t1 - view.t0) / width;
    const first = firstAbove(step_end, view.t0, 0, count);
    const last = Math.max(first + 1, firstAbove(step_begin, view.t1, 0, count));
    const level = Math.max(0, Math.floor(Math.log2((last - first) / width)));
    let [a, b] = [first, first];
    for (let x = 0; x < width; x++) {
      const at = view.t0 + x * msPerPx;
      while (a < count && step_end[a] <= at) a++;
      while (b < count && step_begin[b] < at + msPerPx) b++;
      from[x] = a >> level;
      to[x] = b > a ? ((b - 1) >> level) + 1 : from[x];
    }
    const picture = blamePicture(level);
    return { picture, from, to, first: first >> level, last: Math.max((first >> level) + 1, ((last - 1) >> level) + 1), rows: source.meta.ranks.length, pool: this.each };
  }

  phasePlan() {
    const { layout, source, view } = this;
    const width = Math.max(1, Math.round(layout.plotWidth));
    const msPerPx = (view.t1 - view.t0) / width;
    const picture = phasePicture(levelOf(msPerPx), this.each);
    const from = new Int32Array(width);
    const to = new Int32Array(width);
    const end = Math.ceil(source.meta.duration / picture.binMs);
    for (let x = 0; x < width; x++) {
      const bin = Math.floor((view.t0 + (x + 0.5) * msPerPx) / picture.binMs);
      from[x] = Math.max(0, bin);
      to[x] = bin >= 0 && bin < end ? bin + 1 : from[x];
    }
    const first = Math.min(Math.max(0, from[0]), end - 1);
    const last = Math.max(first + 1, Math.min(end, from[width - 1] + 1));
    return { picture, from, to, first, last, rows: Math.ceil(source.meta.ranks.length / this.each), pool: 1 };
  }

  paint(canvas, tier) {
    const { layout, source, theme } = this;
    const { picture, from, to, first, last, rows, pool } = this.plan(tier);
    const matrix = source.tiles.assembled(picture, first, last, rows);
    const colours = tier === "steps" ? theme.blame : theme.phaseCodes;
    const width = from.length;
    const height = Math.max(1, Math.round(layout.height - RULER));
    this.fit(width, height);
    const out = new Uint32Array(this.image.data.buffer);
    out.fill(0);
    const cells = new Uint8Array(matrix.stride + 1); // the last one is none
    const columns = columnsOf(matrix, from, to);
    this.eachLine(height, (row, top, bottom) => {
      const line = pool > 1 ? row : Math.floor(row / this.each);
      worstRow(matrix, line, Math.min(line + pool, rows), cells);
      const begin = top * width;
      if (columns.several) worstColumns(cells, columns, colours, out, begin);
      else oneColumn(cells, columns.from, colours, out, begin);
      for (let y = top + 1; y < bottom; y++) out.copyWithin(y * width, begin, begin + width);
    });
    this.context.putImageData(this.image, 0, 0);
    canvas.imageSmoothingEnabled = false;
    canvas.drawImage(this.sheet, 0, 0, width, height, GUTTER, RULER, width, height);
  }

  // The worst cell under a pixel of the steps: its row, the index of its step, and its byte.
  cellAt(x, y) {
    const row = this.layout.rowAt(y);
    const pixel = Math.round(x - GUTTER);
    const { picture, from, to, first, last, rows, pool } = this.plan("steps");
    if (row === null || pixel < 0 || pixel >= from.length || to[pixel] <= from[pixel]) return null;
    const { cells, stride, first: left } = this.source.tiles.assembled(picture, first, last, rows);
    const group = row - (row % pool);
    const found = { row: group, step: 0, cell: 0 };
    for (let r = group; r < Math.min(group + pool, rows); r++) {
      for (let c = from[pixel]; c < to[pixel]; c++) {
        const cell = cells[r * stride + c - left];
        if (cell > found.cell) Object.assign(found, { row: r, step: c * picture.size, cell });
      }
    }
    return found.cell ? found : null;
  }

  fit(width, height) {
    if (this.image?.width === width && this.image.height === height) return;
    this.sheet.width = width;
    this.sheet.height = height;
    this.image = this.context.createImageData(width, height);
  }

  // Groups of `each` ranks with the pixel rows they cover.
  eachLine(height, visit) {
    const { layout, view, source } = this;
    const [first, last] = layout.visibleRows();
    const gap = layout.row >= GAP_FROM ? 1 : 0;
    for (let row = first - (first % this.each); row < last; row += this.each) {
      const top = Math.max(0, Math.round(row * layout.row - view.scroll));
      const end = Math.min(row + this.each, source.meta.ranks.length) * layout.row - view.scroll;
      const bottom = Math.min(height, Math.round(end) - gap);
      if (bottom > top) visit(row, top, bottom);
    }
  }
}

// From pixels to columns of the matrix: [from, to), of the blank one where there is none.
function columnsOf({ first, stride }, from, to) {
  const found = { from: new Int32Array(from.length), to: new Int32Array(from.length), several: false };
  for (let x = 0; x < from.length; x++) {
    const some = to[x] > from[x];
    found.from[x] = some ? from[x] - first : stride;
    found.to[x] = some ? to[x] - first : stride + 1;
    if (to[x] > from[x] + 1) found.several = true;
  }
  return found;
}

// Of each column the worst cell in these rows.
function worstRow({ cells, stride }, first, last, found) {
  found.set(cells.subarray(first * stride, (first + 1) * stride));
  for (let row = first + 1; row < last; row++) {
    const own = cells.subarray(row * stride, (row + 1) * stride);
    for (let c = 0; c < stride; c++) if (own[c] > found[c]) found[c] = own[c];
  }
}

// A line of pixels, each with a column of its own. What runs for each pixel is kept this short.
function oneColumn(cells, from, colours, out, begin) {
  for (let x = 0; x < from.length; x++) out[begin + x] = colours[cells[from[x]]];
}

// A line of pixels by the worst of the columns under each.
function worstColumns(cells, { from, to }, colours, out, begin) {
  for (let x = 0; x < from.length; x++) {
    let worst = cells[from[x]];
    for (let c = from[x] + 1; c < to[x]; c++) if (cells[c] > worst) worst = cells[c];
    out[begin + x] = colours[worst];
  }
}
