// Runs that were recorded when the page was made (`metastable.explorer.export_frames`): small numbers that were compressed together.

import { packLeaders, packPositions } from "./packets.js";

const CHUNK = 60, UNIT = 32767, FURTHEST = 65535;

// One object, whatever the order in which its fields were written: what a setting is known by.
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  return `{${Object.keys(value).filter((name) => value[name] !== null && value[name] !== undefined).sort().map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
}

async function inflate(text) {
  const letters = atob(text), packed = new Uint8Array(letters.length);
  for (let i = 0; i < packed.length; i++) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Differences from frame to frame (`count` numbers, `size` to a frame), lower bytes first, then upper ones, back to the numbers (16 bits).
function plane(bytes, at, count, size) {
  const values = new Uint16Array(count);
  for (let i = 0; i < size; i++) values[i] = bytes[at + i] | (bytes[at + count + i] << 8);
  for (let i = size; i < count; i++) values[i] = (bytes[at + i] | (bytes[at + count + i] << 8)) + values[i - size];
  return values;
}
function scaled(values, unit) {
  const out = new Float32Array(values.length);
  for (let i = 0; i < out.length; i++) out[i] = values[i] * unit;
  return out;
}

// A recording as { messages, frames, tokens, components, positions, distance, leaders }.
export async function decode(text) {
  const bytes = await inflate(text), length = new DataView(bytes.buffer).getUint32(0, true);
  const { frames, tokens, components, messages } = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  let at = 4 + length;
  const next = (size) => { const found = plane(bytes, at, frames * size, size); at += 2 * found.length; return found; };
  const positions = scaled(new Int16Array(next(tokens * components).buffer), 1 / UNIT), distance = scaled(next(tokens), Math.PI / FURTHEST), leaders = next(tokens);
  return { frames, tokens, components, messages, positions, distance, leaders };
}

// Everything that a run sends, with the tag of the wish that it answers.
export function play(recording, tag, receive) {
  const { frames, tokens, components, messages, positions, distance, leaders } = recording, say = (type) => receive({ ...messages[type], type, ...tag });
  say("begin");
  say("facts");
  say("view");
  for (let first = 0; first < frames; first += CHUNK) {
    const count = Math.min(CHUNK, frames - first), size = tokens * components;
    receive(packPositions(tag, first, count, tokens, components, positions.subarray(first * size, (first + count) * size), distance.subarray(first * tokens, (first + count) * tokens)));
    receive(packLeaders(tag, first, count, tokens, leaders.subarray(first * tokens, (first + count) * tokens)));
  }
  say("curves");
  say("end");
}

// The unit tokens of a frame, for whoever computes with them.
export function stateOf({ positions, tokens, components }, frame) {
  const state = Float64Array.from(positions.subarray(frame * tokens * components, (frame + 1) * tokens * components));
  for (let at = 0; at < state.length; at += components) {
    let square = 0;
    for (let a = at; a < at + components; a++) square += state[a] ** 2;
    for (let a = at; a < at + components; a++) state[a] /= Math.sqrt(square);
  }
  return state;
}
