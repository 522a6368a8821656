// The view as a file: a picture of the canvas here, the rest from the server.

const SCALE = 2; // of the picture: it is looked at on other screens

export class Exports {
  constructor(box, timeline) {
    Object.assign(this, { box, timeline });
    if (globalThis.ddpOffline) for (const link of box.querySelectorAll("a:not([data-kind='png'])")) link.remove();
    box.addEventListener("toggle", () => { if (box.open) this.address(); });
    box.addEventListener("click", (event) => this.clicked(event));
    box.addEventListener("keydown", (event) => { if (event.key === "Escape") this.close(); });
  }

  close() {
    this.box.open = false;
    this.box.querySelector("summary").focus();
  }

  // Links, so that they can be copied and saved as any other.
  address() {
    const { layout, source, view } = this.timeline;
    const [r0, r1] = layout.visibleRows();
    const stretch = `t0=${view.t0.toFixed(3)}&t1=${view.t1.toFixed(3)}&r0=${r0}&r1=${r1}`;
    const paths = { html: `page.html?${stretch}&at=${encodeURIComponent(view.query(layout.row))}`, csv: `table.csv?${stretch}`, trace: `trace.json.gz?${stretch}` };
    for (const link of this.box.querySelectorAll("a")) {
      const path = paths[link.dataset.kind];
      if (path) link.href = source.base + path;
    }
  }

  clicked(event) {
    const link = event.target.closest("a");
    if (!link) return;
    if (link.dataset.kind === "png") {
      event.preventDefault();
      this.picture();
    }
    this.close();
  }

  picture() {
    const { canvas, painter } = this.timeline;
    const { ratio } = painter;
    painter.ratio = SCALE;
    painter.resize();
    painter.paint();
    canvas.toBlob((blob) => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = "timeline.png";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    });
    painter.ratio = ratio;
    painter.resize();
    painter.paint();
  }
}
