// Colours of the theme that is on: phases from the server, the rest from the style sheet.

export const PHASE = { BETWEEN: 0, BLOCKED: 5, WAIT: 6, TRANSFER: 7 };
const LEVELS = 15; // of blame, in the upper half of a cell; below it, 8 and the phase
const CULPRIT = 16; // added to a phase that made a rank take longer than the others
const FAINTEST = 0.5; // a cell that is not quiet must be seen on any ground
const ORDINARY = 0.45; // strength of a phase that did not
const QUIET = { [PHASE.WAIT]: 0.16, [PHASE.BETWEEN]: 0.25, [PHASE.TRANSFER]: 0.4, [PHASE.BLOCKED]: 0.3 };

export class Theme {
  constructor(colours) {
    this.colours = colours;
    this.refresh();
  }

  refresh() {
    const root = document.documentElement;
    const style = getComputedStyle(root);
    const read = (name) => style.getPropertyValue(name).trim();
    this.phases = this.colours[root.dataset.theme] ?? this.colours.light;
    this.ground = read("--ground");
    this.row = read("--row");
    this.text = read("--text");
    this.dim = read("--dim");
    this.line = read("--line");
    this.accent = read("--accent");
    this.bad = read("--bad");
    this.ink = {};
    for (const [phase, colour] of Object.entries(this.phases)) this.ink[phase] = inkOn(colour);
    this.hatch = hatch(this.phases[PHASE.WAIT], this.row);
    this.blame = this.blameTable();
    this.phaseCodes = this.phaseTable();
  }

  // By the byte of a cell: the colour is the cause's, its strength the level.
  blameTable() {
    const table = new Uint32Array(256);
    for (let cell = 8; cell < 256; cell++) {
      if (!(cell & 8)) continue;
      const level = cell >> 4;
      const strength = level ? FAINTEST + ((1 - FAINTEST) * level) / LEVELS : 0;
      table[cell] = packed(blend(this.phases[cell & 7], this.row, strength));
    }
    return table;
  }

  // By 1 + phase: what is ordinary is pale and waiting is quiet, so that the culprits stand out.
  phaseTable() {
    const table = new Uint32Array(256);
    for (const [phase, colour] of Object.entries(this.phases)) {
      table[1 + Number(phase)] = packed(blend(colour, this.row, QUIET[phase] ?? ORDINARY));
      table[CULPRIT + 1 + Number(phase)] = packed(blend(colour, this.row, 1));
    }
    return table;
  }
}

function parts(colour) {
  const hex = colour.length === 4 ? colour.replace(/[0-9a-f]/gi, "$&$&") : colour;
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function blend(colour, ground, strength) {
  const below = parts(ground);
  return parts(colour).map((part, i) => Math.round(part * strength + below[i] * (1 - strength)));
}

// As the pixels of an image lie in memory on all machines that browsers run on.
function packed([r, g, b]) {
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

// Black or white, whichever is read more easily on the colour.
function inkOn(colour) {
  const [r, g, b] = parts(colour).map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2 ? "#101418" : "#ffffff";
}

// Waiting is quiet: lines on the row's ground, so that the culprit's solid colour stands out.
function hatch(colour, ground) {
  const ratio = window.devicePixelRatio || 1;
  const size = Math.round(7 * ratio);
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const context = tile.getContext("2d");
  context.fillStyle = ground;
  context.fillRect(0, 0, size, size);
  context.globalAlpha = 0.06;
  context.fillStyle = colour;
  context.fillRect(0, 0, size, size);
  context.globalAlpha = 0.4;
  context.strokeStyle = colour;
  context.lineWidth = ratio;
  for (const shift of [-size, 0, size]) {
    context.beginPath();
    context.moveTo(shift, size);
    context.lineTo(shift + size, 0);
    context.stroke();
  }
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}
