// The frames of one run, as they arrive. Arrays are made once per run; nothing is allocated while playing.

import { describe } from "./text.js";

const STRIDE = 0.05; // radians, as in `metastable.figures.moments`

export class Run {
  // `asked`: the setting and the clock that it was asked for with.
  constructor(begin, asked) {
    this.id = begin.run;
    this.setting = asked.setting;
    this.clock = asked.clock;
    this.times = Float64Array.from(begin.times);
    this.frames = begin.times.length;
    this.tokens = begin.tokens;
    this.dim = begin.dim;
    this.components = begin.components;
    this.delta = begin.delta;
    this.radius = begin.radius;
    this.held = Boolean(begin.held); // nobody knows what was between two moments: the first of them stays until the second
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

  // What holds at a time: the run itself, or the one of its models (`export_models.pieces`) that does.
  at(time) { return this.view?.pieces?.findLast(({ from }) => from <= time) ?? this; }
  get joints() { return (this.view?.pieces ?? []).slice(1).map(({ from }) => from); }
  get heading() { return describe(this.setting); }
  get model() { return this.setting.model; }
  get heads() { return this.setting.model.heads?.length ?? 1; }
  get total() { return this.facts?.total; }
  get eigenvalue() { return this.facts?.prediction?.eigenvalue; }
  get frozen() { return this.view?.frozen; }
  get leading() { return this.view?.leading; }
  // All that holds at some time.
  get parts() { return this.view?.pieces ?? [this]; }

  get last() { return Math.max(0, this.have - 1); }

  // Positions and clusters of a frame are there (or will never be).
  has(frame) { return Boolean(this.end) || (this.have > frame && this.labelled > frame); }

  get frame() { return Math.max(1, this.frames - 1); }

  // Where the frame position `at` (0..1 of the whole clock) lies: frame, fraction, time.
  place(at, log = this.clock.log) {
    const exact = Math.min(at * (this.frames - 1), this.last);
    if (this.held) {
      const frame = Math.floor(exact + 1e-6); // the place of a moment is a rounded number
      return { frame, fraction: 0, time: this.times[frame], nearest: frame };
    }
    const frame = Math.min(Math.floor(exact), Math.max(0, this.last - 1));
    const fraction = Math.min(1, exact - frame);
    const next = Math.min(frame + 1, this.last), a = this.times[frame], b = this.times[Math.min(frame + 1, this.frames - 1)];
    const time = log && a > 0 ? a * (b / a) ** fraction : a + fraction * (b - a);
    return { frame, fraction, time, nearest: this.nearest(frame, next, fraction < 0.5, this.at(time)) };
  }

  // The one of two frames that is nearer, among those at which the same model holds.
  nearest(frame, next, early, holds) {
    const [before, after] = [frame, next].map((f) => this.at(this.times[f]) === holds);
    return (before === after ? early : before) ? frame : next;
  }

  // How far a token goes from a frame to the next is more than a line may hide: for a run that is `held` nobody knows the way.
  leaps(frame, token) {
    const { tokens, components: c, positions } = this, a = (frame * tokens + token) * c, b = a + tokens * c;
    return this.held && Math.hypot(...[0, 1, 2].slice(0, c).map((i) => positions[b + i] - positions[a + i])) > STRIDE;
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

  // How many clusters there are in a frame.
  clusters(frame) {
    if (this.labelled <= frame) return null;
    const seen = new Set();
    for (let k = 0; k < this.tokens; k++) seen.add(this.leaders[frame * this.tokens + k]);
    return seen.size;
  }

  // How far the tokens go from each frame to the next, as a share of the mean: what a film is paced by. Known when the run is complete.
  get motion() {
    if (this.pace?.have === this.have) return this.pace;
    const { tokens, components: c, positions } = this, pace = new Float32Array(this.frames);
    let total = 0;
    for (let f = 0; f + 1 < this.have; f++) {
      let sum = 0;
      for (let i = f * tokens * c; i < (f + 1) * tokens * c; i++) sum += (positions[i + tokens * c] - positions[i]) ** 2;
      pace[f] = Math.sqrt(sum / tokens);
      total += pace[f];
    }
    const mean = total / Math.max(1, this.have - 1);
    for (let f = 0; f < pace.length; f++) pace[f] = mean > 0 ? pace[f] / mean : 1;
    pace.have = this.have;
    pace.still = mean > 0 ? this.firstMotion() : 0;
    this.pace = pace;
    return pace;
  }

  // The last frame before anything visible has happened: some token is `seen` away from its start in the next one.
  firstMotion(seen = 0.02) {
    const { tokens, components: c, positions } = this, size = tokens * c;
    for (let f = this.checked ?? 1; f < this.have; f++) {
      for (let i = 0; i < size; i++) if (Math.abs(positions[f * size + i] - positions[i]) > seen) return f - 1;
      this.checked = f;
    }
    return this.end ? 0 : this.last;
  }

  leader(frame, token) { return this.leaders[Math.min(frame, Math.max(0, this.labelled - 1)) * this.tokens + token]; }
}
