// Pictures of many spans, in tiles of one byte a cell: fetched, kept, and put together for a view.

export const TILE = 512; // columns and rows, as the server makes them
const FINEST_MS = 0.001; // a bin of a tile of level 0
const MOST_KEPT = 96;
const MOST_AT_ONCE = 4; // requests; more of them only wait for each other
const MOST_IN_ONE = 8; // tiles side by side in one request
export const RETRY_MS = 2_000; // after a request that failed
const COARSER = 5; // levels that are tried while a tile is on its way

export class Tiles {
  constructor(load) {
    this.load = load;
    this.mostInOne = MOST_IN_ONE;
    this.kept = new Map(); // path: bytes, the one used last at the end
    this.asked = new Map(); // path: AbortController of the request that it is part of
    this.failure = null;
    this.resting = false; // after a failure
    this.version = 0; // grows with each tile that comes
    this.matrix = null;
  }

  forget() {
    for (const request of this.asked.values()) request.abort();
    this.kept.clear();
    this.asked.clear();
    this.matrix = null;
  }

  // Asks for the tiles in view that are not there; drops what was asked for another view.
  want(tiles, done) {
    this.drop(new Set(tiles.map(({ path }) => path)));
    let room = this.resting ? 0 : MOST_AT_ONCE - new Set(this.asked.values()).size;
    for (const paths of this.sideBySide(tiles)) if (room-- > 0) this.ask(paths, done);
    return tiles.every(({ path }) => this.kept.has(path));
  }

  // Requests of which nothing is wanted any more.
  drop(wanted) {
    const used = new Set([...this.asked].filter(([path]) => wanted.has(path)).map(([, request]) => request));
    for (const [path, request] of this.asked) {
      if (used.has(request)) continue;
      request.abort();
      this.asked.delete(path);
    }
  }

  // The paths of missing tiles, those of one request together: each request has its price.
  sideBySide(tiles) {
    const groups = new Map(); // by the last path of each
    for (const { path, left } of tiles) {
      if (this.kept.has(path) || this.asked.has(path)) continue;
      const group = groups.get(left);
      if (group && group.length < this.mostInOne) {
        groups.delete(left);
        groups.set(path, [...group, path]);
      } else groups.set(path, [path]);
    }
    return groups.values();
  }

  ask(paths, done) {
    const request = new AbortController();
    for (const path of paths) this.asked.set(path, request);
    const forget = () => {
      for (const path of paths) if (this.asked.get(path) === request) this.asked.delete(path);
    };
    this.load(`${paths[0]}?tiles=${paths.length}`, request.signal).then(
      (buffer) => {
        if (request.signal.aborted) return;
        forget();
        const size = buffer.byteLength / paths.length;
        for (const [i, path] of paths.entries()) this.keep(path, new Uint8Array(buffer, i * size, size));
        this.failure = null;
        done();
      },
      (error) => {
        if (request.signal.aborted) return;
        forget();
        this.failure = String(error.message);
        this.resting = true;
        setTimeout(() => { this.resting = false; done(); }, RETRY_MS);
        done();
      },
    );
  }

  keep(path, bytes) {
    this.kept.set(path, bytes);
    this.version += 1;
    while (this.kept.size > MOST_KEPT) this.kept.delete(this.kept.keys().next().value);
  }

  use(path) {
    const bytes = this.kept.get(path);
    if (bytes) {
      this.kept.delete(path);
      this.kept.set(path, bytes);
    }
    return bytes;
  }

  // The cells of columns [first, last) and rows [0, rows) of a picture as one matrix, and which
  // columns it holds. A missing tile shows the nearest coarser one that is there.
  assembled(picture, first, last, rows) {
    const [t0, t1] = [Math.floor(first / TILE), Math.floor((last - 1) / TILE)];
    const key = `${picture.key}/${t0}/${t1}/${rows}/${this.version}`;
    if (this.matrix?.key === key) return this.matrix;
    const stride = (t1 - t0 + 1) * TILE;
    const cells = new Uint8Array(stride * rows);
    for (let tile = t0; tile <= t1; tile++) {
      for (const { path, at, count } of picture.strips(tile, rows)) {
        const bytes = this.use(path);
        if (bytes) copy(bytes, cells, stride, (tile - t0) * TILE, at, count);
        else this.stretched(picture, tile, rows, cells, stride, (tile - t0) * TILE, at, count);
      }
    }
    this.matrix = { key, cells, stride, first: t0 * TILE };
    return this.matrix;
  }

  stretched(picture, tile, rows, cells, stride, left, at, count) {
    for (let up = 1; up <= COARSER; up++) {
      const strip = picture.coarser(up).strips(tile >> up, rows).find((each) => each.at === at);
      const bytes = strip && this.kept.get(strip.path);
      if (!bytes) continue;
      const shift = (tile & ((1 << up) - 1)) * (TILE >> up);
      for (let row = 0; row < count; row++) {
        const from = row * TILE + shift;
        const to = (at + row) * stride + left;
        for (let x = 0; x < TILE; x++) cells[to + x] = bytes[from + (x >> up)];
      }
      return;
    }
  }
}

function copy(bytes, cells, stride, left, at, count) {
  for (let row = 0; row < count && (row + 1) * TILE <= bytes.length; row++) {
    cells.set(bytes.subarray(row * TILE, (row + 1) * TILE), (at + row) * stride + left);
  }
}

// Whom each step waited for: columns are steps, 2^level of them in one.
export function blamePicture(level) {
  return {
    key: `blame/${level}`,
    size: 2 ** level,
    coarser: (up) => blamePicture(level + up),
    strips: (tile, rows) => [{ path: `blame/${level}/${tile}`, left: `blame/${level}/${tile - 1}`, at: 0, count: rows }],
  };
}

// The phase at each time: bins of 2^level µs, rows of the worst of `each` ranks.
export function phasePicture(level, each) {
  return {
    key: `phases/${level}/${each}`,
    binMs: FINEST_MS * 2 ** level,
    coarser: (up) => phasePicture(level + up, each),
    strips: (tile, rows) => Array.from({ length: Math.ceil(rows / TILE) }, (_, strip) => ({
      path: `phases/${level}/${tile}/${each}/${strip}`,
      left: `phases/${level}/${tile - 1}/${each}/${strip}`,
      at: strip * TILE,
      count: Math.min(TILE, rows - strip * TILE),
    })),
  };
}

export function levelOf(msPerPx) {
  return Math.max(0, Math.ceil(Math.log2(msPerPx / FINEST_MS) - 0.25));
}
