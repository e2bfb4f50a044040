// Moving pictures as GIF: 256 colours for the whole film by median cut, each picture by LZW (GIF89a, appendix F).

const BITS = 5, CELLS = 1 << (3 * BITS); // colours are told apart to five bits
const cell = (r, g, b) => ((r >> 3) << 10) | ((g >> 3) << 5) | (b >> 3);

// How often each cell occurs in the pictures, into `counts`.
export function count(pixels, counts = new Uint32Array(CELLS)) {
  for (let i = 0; i < pixels.length; i += 4) counts[cell(pixels[i], pixels[i + 1], pixels[i + 2])]++;
  return counts;
}

// The box of colours with the longest side times its weight is halved, again and again.
export function palette(counts, size = 256) {
  const parts = (c) => [(c >> 10) & 31, (c >> 5) & 31, c & 31];
  const all = [];
  for (let c = 0; c < CELLS; c++) if (counts[c]) all.push(c);
  const measure = (cells) => {
    const low = [31, 31, 31], high = [0, 0, 0];
    let weight = 0;
    for (const c of cells) { weight += counts[c]; parts(c).forEach((v, i) => { low[i] = Math.min(low[i], v); high[i] = Math.max(high[i], v); }); }
    const sides = high.map((v, i) => v - low[i]), axis = sides.indexOf(Math.max(...sides));
    return { cells, axis, score: cells.length > 1 ? sides[axis] * Math.sqrt(weight) : 0, weight };
  };
  const boxes = [measure(all)];
  while (boxes.length < size) {
    boxes.sort((a, b) => b.score - a.score);
    const box = boxes[0];
    if (!box.score) break;
    box.cells.sort((a, b) => parts(a)[box.axis] - parts(b)[box.axis]);
    let half = 0, at = 0;
    while (at < box.cells.length - 1 && half + counts[box.cells[at]] <= box.weight / 2) half += counts[box.cells[at++]];
    at = Math.max(1, at);
    boxes.splice(0, 1, measure(box.cells.slice(0, at)), measure(box.cells.slice(at)));
  }
  const colors = new Uint8Array(3 * 256), lookup = new Uint8Array(CELLS);
  boxes.forEach(({ cells, weight }, index) => {
    const sum = [0, 0, 0];
    for (const c of cells) { lookup[c] = index; parts(c).forEach((v, i) => { sum[i] += counts[c] * v; }); }
    sum.forEach((v, i) => { colors[3 * index + i] = Math.min(255, Math.round((v / weight) * 8 + 4)); });
  });
  return { colors, lookup };
}

// Codes of growing length, 9 to 12 bits, in blocks of at most 255 bytes.
function compress(indices) {
  const out = [8];
  let block = [], bits = 0, held = 0, width = 9, next = 258, codes = new Map();
  const flush = () => { if (block.length) { out.push(block.length, ...block); block = []; } };
  const put = (code) => {
    held |= code << bits; bits += width;
    while (bits >= 8) { block.push(held & 255); held >>>= 8; bits -= 8; if (block.length === 255) flush(); }
  };
  put(256);
  let prefix = indices[0];
  for (let i = 1; i < indices.length; i++) {
    const key = (prefix << 8) | indices[i], known = codes.get(key);
    if (known !== undefined) { prefix = known; continue; }
    put(prefix);
    if (next === 4096) { put(256); codes = new Map(); next = 258; width = 9; } else { if (next === 1 << width) width++; codes.set(key, next++); }
    prefix = indices[i];
  }
  put(prefix); put(257);
  if (bits) block.push(held & 255);
  flush();
  out.push(0);
  return out;
}

const word = (value) => [value & 255, value >> 8];

export class Gif {
  // `colors`, `lookup`: from `palette`.
  constructor(width, height, { colors, lookup }) {
    Object.assign(this, { width, height, lookup });
    const name = [...new TextEncoder().encode("NETSCAPE2.0")];
    this.parts = [Uint8Array.from([...new TextEncoder().encode("GIF89a"), ...word(width), ...word(height), 0xf7, 0, 0]), colors, Uint8Array.from([0x21, 0xff, 11, ...name, 3, 1, 0, 0, 0])];
  }

  // A picture (RGBA) that is shown for `hundredths` of a second.
  add(pixels, hundredths) {
    const indices = new Uint8Array(this.width * this.height);
    for (let i = 0; i < indices.length; i++) indices[i] = this.lookup[cell(pixels[4 * i], pixels[4 * i + 1], pixels[4 * i + 2])];
    this.parts.push(Uint8Array.from([0x21, 0xf9, 4, 0, ...word(hundredths), 0, 0, 0x2c, 0, 0, 0, 0, ...word(this.width), ...word(this.height), 0]), Uint8Array.from(compress(indices)));
  }

  blob() { return new Blob([...this.parts, Uint8Array.from([0x3b])], { type: "image/gif" }); }
}
