// A drawing context that writes down what is drawn, as SVG: the part of a canvas that the pictures use.

const escape = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const n = (value) => String(Number(value.toFixed(2)));
const ANCHORS = { left: "start", center: "middle", right: "end" };
const BASELINES = { top: "hanging", middle: "central", bottom: "auto", alphabetic: "auto" };

class Gradient {
  constructor(x0, y0, r0, x1, y1, r1) { Object.assign(this, { x0, y0, r0, x1, y1, r1, stops: [] }); }
  addColorStop(offset, color) { this.stops.push([offset, color]); }
}

export class SvgContext {
  constructor(width, height) {
    Object.assign(this, { width, height, globalAlpha: 1, lineWidth: 1, lineJoin: "miter", lineCap: "butt", strokeStyle: "#000", fillStyle: "#000", font: "10px sans-serif", textAlign: "left", textBaseline: "alphabetic" });
    this.dash = [];
    this.shift = [0, 0];
    this.stack = [];
    this.path = [];
    this.body = [];
    this.defs = [];
  }

  save() { this.stack.push([...this.shift]); }
  restore() { this.shift = this.stack.pop() ?? [0, 0]; }
  translate(x, y) { this.shift = [this.shift[0] + x, this.shift[1] + y]; }
  setLineDash(dash) { this.dash = dash; }
  measureText(text) {
    this.ruler ??= document.createElement("canvas").getContext("2d");
    this.ruler.font = this.font;
    return this.ruler.measureText(text);
  }
  createRadialGradient(...circles) { return new Gradient(...circles); }

  x(value) { return n(value + this.shift[0]); }
  y(value) { return n(value + this.shift[1]); }
  beginPath() { this.path = []; }
  moveTo(x, y) { this.path.push(`M${this.x(x)} ${this.y(y)}`); }
  lineTo(x, y) { this.path.push(`${this.path.length ? "L" : "M"}${this.x(x)} ${this.y(y)}`); }
  closePath() { this.path.push("Z"); }
  rect(x, y, width, height) { this.path.push(`M${this.x(x)} ${this.y(y)}h${n(width)}v${n(height)}h${n(-width)}Z`); }
  // Only whole circles are drawn.
  arc(x, y, r) { this.path.push(`M${this.x(x - r)} ${this.y(y)}a${n(r)} ${n(r)} 0 1 0 ${n(2 * r)} 0a${n(r)} ${n(r)} 0 1 0 ${n(-2 * r)} 0Z`); }

  paint(style) {
    if (!(style instanceof Gradient)) return `"${escape(style)}"`;
    const id = `g${this.defs.length}`, stops = style.stops.map(([offset, color]) => `<stop offset="${offset}" stop-color="${escape(color)}"/>`).join("");
    this.defs.push(`<radialGradient id="${id}" gradientUnits="userSpaceOnUse" fx="${this.x(style.x0)}" fy="${this.y(style.y0)}" fr="${n(style.r0)}" cx="${this.x(style.x1)}" cy="${this.y(style.y1)}" r="${n(style.r1)}">${stops}</radialGradient>`);
    return `"url(#${id})"`;
  }
  get faint() { return this.globalAlpha < 1 ? ` opacity="${n(this.globalAlpha)}"` : ""; }
  get pen() {
    const dash = this.dash.length ? ` stroke-dasharray="${this.dash.join(" ")}"` : "";
    return ` stroke=${this.paint(this.strokeStyle)} stroke-width="${n(this.lineWidth)}" stroke-linejoin="${this.lineJoin}" stroke-linecap="${this.lineCap}"${dash}`;
  }
  fill() { this.body.push(`<path d="${this.path.join("")}" fill=${this.paint(this.fillStyle)}${this.faint}/>`); }
  stroke() { if (this.path.length > 1 || this.path[0]?.includes("a") || this.path[0]?.includes("h")) this.body.push(`<path d="${this.path.join("")}" fill="none"${this.pen}${this.faint}/>`); }
  fillRect(x, y, width, height) { this.body.push(`<rect x="${this.x(x)}" y="${this.y(y)}" width="${n(width)}" height="${n(height)}" fill=${this.paint(this.fillStyle)}${this.faint}/>`); }
  text(words, x, y, paint) {
    const style = `font:${this.font};text-anchor:${ANCHORS[this.textAlign]};dominant-baseline:${BASELINES[this.textBaseline]}`;
    this.body.push(`<text x="${this.x(x)}" y="${this.y(y)}" style="${escape(style)}"${paint}${this.faint}>${escape(words)}</text>`);
  }
  fillText(words, x, y) { this.text(words, x, y, ` fill=${this.paint(this.fillStyle)}`); }
  strokeText(words, x, y) { this.text(words, x, y, ` fill="none"${this.pen}`); }

  toString() {
    const size = `width="${n(this.width)}" height="${n(this.height)}" viewBox="0 0 ${n(this.width)} ${n(this.height)}"`;
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size}><defs>${this.defs.join("")}</defs>${this.body.join("\n")}</svg>\n`;
  }
}
