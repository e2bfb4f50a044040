// The attention matrix at the present moment: row k shows whom token k looks at. The row of the token that is pointed at is marked.

import { Chart } from "./chart.js";
import { heat } from "./colors.js";

export class Attention extends Chart {
  constructor(figure, events) {
    super(figure, events);
    this.margin = { left: 2, right: 2, top: 2, bottom: 2 };
    this.image = document.createElement("canvas");
    this.visible = true;
    this.canvas.addEventListener("pointermove", (event) => this.pointAt(event.clientY - this.canvas.getBoundingClientRect().top));
    this.canvas.addEventListener("pointerleave", () => events.point(-1));
    new IntersectionObserver((entries) => { this.visible = entries.at(-1).isIntersecting; events.stale(); }).observe(figure);
  }

  show({ components: size, tokens, buffer, offset, first, run }, theme, lit) {
    this.data = { size, tokens, values: new Float32Array(buffer, offset, size * size) };
    this.figure.dataset.frame = first;
    this.figure.dataset.run = run;
    this.draw(theme, lit);
  }

  // Nothing is known of the model that holds.
  blank(theme) {
    this.data = null;
    delete this.figure.dataset.frame;
    this.clear(theme);
    this.figure.querySelector(".key").textContent = "not on this page";
  }

  pointAt(py) {
    if (!this.data) return;
    const { y, height } = this.inner, { tokens } = this.data, token = Math.floor((tokens * (py - y)) / height);
    this.events.point(token >= 0 && token < tokens ? token : -1);
  }

  draw(theme, lit = -1) {
    if (!this.data || !this.size[0]) return;
    const { size, tokens, values } = this.data;
    if (this.image.width !== size) { this.image.width = size; this.image.height = size; }
    const ctx = this.image.getContext("2d"), pixels = ctx.createImageData(size, size);
    for (let i = 0; i < values.length; i++) {
      const [r, g, b] = heat(Math.min(1, values[i]) ** 0.42, theme.dark);
      pixels.data.set([r, g, b, 255], 4 * i);
    }
    ctx.putImageData(pixels, 0, 0);
    this.clear(theme);
    const { x, y, width, height } = this.inner;
    this.ctx.imageSmoothingEnabled = false;
    this.ctx.drawImage(this.image, x, y, width, height);
    this.ctx.strokeStyle = theme.faint; this.ctx.lineWidth = 1;
    this.ctx.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
    if (lit >= 0 && lit < tokens) {
      const row = Math.min(size - 1, Math.floor((lit * size) / tokens)), high = Math.max(3, height / size);
      this.ctx.lineWidth = 2; this.ctx.strokeStyle = theme.theory;
      this.ctx.strokeRect(x + 1, Math.min(y + height - high, y + (row * height) / size) - 1, width - 2, high + 2);
    }
    this.figure.querySelector(".key").textContent = lit >= 0 && lit < tokens ? `token ${lit}` : tokens > size ? `blocks of ${Math.ceil(tokens / size)}` : this.size[0] < 186 ? "" : "row sees column"; // beside a narrow chart there is no room for it
  }
}
