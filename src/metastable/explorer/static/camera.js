// The camera of the sphere: a unit quaternion [w, x, y, z], shared by pictures that stand side by side.

export function multiply(a, b) {
  return [
    a[0] * b[0] - a[1] * b[1] - a[2] * b[2] - a[3] * b[3],
    a[0] * b[1] + a[1] * b[0] + a[2] * b[3] - a[3] * b[2],
    a[0] * b[2] - a[1] * b[3] + a[2] * b[0] + a[3] * b[1],
    a[0] * b[3] + a[1] * b[2] - a[2] * b[1] + a[3] * b[0],
  ];
}

export function turn(x, y, z, angle) {
  const length = Math.hypot(x, y, z) || 1, s = Math.sin(angle / 2) / length;
  return [Math.cos(angle / 2), x * s, y * s, z * s];
}

function unit(q) {
  const length = Math.hypot(...q);
  return q.map((c) => c / length);
}

function matrix([w, x, y, z]) {
  return [
    1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
    2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
    2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
  ];
}

// The third axis up, tilted a little towards the viewer.
export const HOME = unit(multiply(turn(1, 0, 0, -1.22), turn(0, 0, 1, -1.15)));
const FRICTION = 3.2;

export class Camera {
  constructor() { this.reset(); }
  reset(quaternion = HOME) {
    this.quaternion = unit(quaternion);
    this.spin = [0, 0];
    this.matrix = matrix(this.quaternion);
  }
  // Turn by a movement on the screen, in radians.
  rotate(dx, dy) {
    const angle = Math.hypot(dx, dy);
    if (!angle) return;
    this.quaternion = unit(multiply(turn(dy, dx, 0, angle), this.quaternion));
    this.matrix = matrix(this.quaternion);
  }
  // Inertia: goes on turning after a throw, slower and slower. Returns whether it still turns.
  coast(seconds) {
    const [dx, dy] = this.spin;
    if (Math.hypot(dx, dy) < 0.02) { this.spin = [0, 0]; return false; }
    this.rotate(dx * seconds, dy * seconds);
    const keep = Math.exp(-FRICTION * seconds);
    this.spin = [dx * keep, dy * keep];
    return true;
  }
  // Around the axis of the sphere itself, for the slow drift while playing.
  drift(angle) {
    this.quaternion = unit(multiply(this.quaternion, turn(0, 0, 1, angle)));
    this.matrix = matrix(this.quaternion);
  }
  // A direction on the screen (unit vector towards the viewer's right, up, front) as a direction in space.
  inverse(x, y, z) {
    const m = this.matrix;
    return [m[0] * x + m[3] * y + m[6] * z, m[1] * x + m[4] * y + m[7] * z, m[2] * x + m[5] * y + m[8] * z];
  }
}
