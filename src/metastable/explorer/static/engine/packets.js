// Frames as they travel: a header of 24 bytes and numbers (`metastable.explorer.protocol` says which).

const POSITIONS = 1, LEADERS = 2, ATTENTION = 3, HEADER = 24;

function packet(kind, { panel, run }, first, frames, tokens, components, bytes) {
  const buffer = new ArrayBuffer(HEADER + bytes), view = new DataView(buffer);
  view.setUint16(0, 0x4d53, false);
  view.setUint8(2, kind); view.setUint8(3, panel);
  [run, first, frames, tokens, components].forEach((value, i) => view.setUint32(4 + 4 * i, value, true));
  return buffer;
}

export function packPositions(tag, first, frames, tokens, components, positions, distances) {
  const buffer = packet(POSITIONS, tag, first, frames, tokens, components, 4 * frames * tokens * (components + 1));
  new Float32Array(buffer, HEADER).set(positions);
  new Float32Array(buffer, HEADER + 4 * frames * tokens * components).set(distances);
  return buffer;
}
export function packLeaders(tag, first, frames, tokens, leaders) {
  const buffer = packet(LEADERS, tag, first, frames, tokens, 1, 2 * frames * tokens);
  new Uint16Array(buffer, HEADER).set(leaders);
  return buffer;
}
export function packAttention(tag, frame, tokens, matrix, size) {
  const buffer = packet(ATTENTION, tag, frame, 1, tokens, size, 4 * size * size);
  new Float32Array(buffer, HEADER).set(matrix);
  return buffer;
}
