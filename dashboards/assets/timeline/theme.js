// Colours of the theme that is on: phases from the server, the rest from the style sheet.

export const PHASE = { BETWEEN: 0, BLOCKED: 5, WAIT: 6, TRANSFER: 7 };

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
  }
}

// Black or white, whichever is read more easily on the colour.
function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => {
    const part = parseInt(colour.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
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
  context.globalAlpha = 0.16;
  context.fillStyle = colour;
  context.fillRect(0, 0, size, size);
  context.globalAlpha = 0.8;
  context.strokeStyle = colour;
  context.lineWidth = ratio * 1.1;
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
