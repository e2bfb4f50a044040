// The frames of one run, as they arrive. Arrays are made once per run; nothing is allocated while playing.

export class Run {
  constructor(begin) {
    this.id = begin.run;
    this.times = Float64Array.from(begin.times);
    this.frames = begin.times.length;
    this.tokens = begin.tokens;
    this.dim = begin.dim;
    this.components = begin.components;
    this.delta = begin.delta;
    this.radius = begin.radius;
    this.positions = new Float32Array(this.frames * this.tokens * this.components);
    this.distance = new Float32Array(this.frames * this.tokens);
    this.leaders = new Uint16Array(this.frames * this.tokens);
    for (let i = 0; i < this.leaders.length; i++) this.leaders[i] = i % this.tokens;
    this.have = 0;
    this.labelled = 0;
    this.facts = null;
    this.view = null;
    this.curves = null;
    this.end = null;
    this.version = 0;
  }

  addPositions({ first, frames, tokens, components, buffer, offset }) {
    if (tokens !== this.tokens || components !== this.components || first + frames > this.frames) return;
    const size = tokens * components;
    this.positions.set(new Float32Array(buffer, offset, frames * size), first * size);
    this.distance.set(new Float32Array(buffer, offset + 4 * frames * size, frames * tokens), first * tokens);
    if (first <= this.have) this.have = Math.max(this.have, first + frames);
    this.version++;
  }

  addLeaders({ first, frames, tokens, buffer, offset }) {
    if (tokens !== this.tokens || first + frames > this.frames) return;
    this.leaders.set(new Uint16Array(buffer, offset, frames * tokens), first * tokens);
    if (first <= this.labelled) this.labelled = Math.max(this.labelled, first + frames);
    this.version++;
  }

  get last() { return Math.max(0, this.have - 1); }

  // Where the frame position `at` (0..1 of the whole clock) lies: frame, fraction, time.
  place(at, log) {
    const exact = Math.min(at * (this.frames - 1), this.last);
    const frame = Math.min(Math.floor(exact), Math.max(0, this.last - 1));
    const fraction = Math.min(1, exact - frame);
    const a = this.times[frame], b = this.times[Math.min(frame + 1, this.frames - 1)];
    const time = log && a > 0 ? a * (b / a) ** fraction : a + fraction * (b - a);
    return { frame, fraction, time, nearest: fraction < 0.5 ? frame : Math.min(frame + 1, this.last) };
  }

  // Positions between two frames into `out` (tokens * 3, z = 0 on the circle), put back on the sphere where the space is shown as it is.
  interpolate({ frame, fraction }, out) {
    const { tokens, components: c, positions } = this;
    const a = frame * tokens * c, b = Math.min(frame + 1, this.last) * tokens * c;
    const whole = this.dim <= 3;
    for (let k = 0; k < tokens; k++) {
      const i = a + k * c, j = b + k * c, o = 3 * k;
      let x = positions[i] + fraction * (positions[j] - positions[i]);
      let y = positions[i + 1] + fraction * (positions[j + 1] - positions[i + 1]);
      let z = c > 2 ? positions[i + 2] + fraction * (positions[j + 2] - positions[i + 2]) : 0;
      if (whole) {
        const scale = 1 / (Math.hypot(x, y, z) || 1);
        x *= scale; y *= scale; z *= scale;
      }
      out[o] = x; out[o + 1] = y; out[o + 2] = z;
    }
  }

  leader(frame, token) { return this.leaders[Math.min(frame, Math.max(0, this.labelled - 1)) * this.tokens + token]; }
}
