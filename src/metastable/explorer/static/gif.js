// Moving pictures as GIF: 256 colours for the whole film by median cut, each picture by LZW (GIF89a, appendix F).

const BITS = 6, LEVELS = 1 << BITS, CELLS = 1 << (3 * BITS); // colours are told apart to six bits
const cell = (r, g, b) => ((r >> 2) << (2 * BITS)) | ((g >> 2) << BITS) | (b >> 2);
const parts = (c) => [c >> (2 * BITS), (c >> BITS) & (LEVELS - 1), c & (LEVELS - 1)];

// How often the colours of each cell occur in the pictures, and their sums, added to `tally`.
export function count(pixels, tally = { counts: new Uint32Array(CELLS), sums: new Float64Array(3 * CELLS) }) {
  for (let i = 0; i < pixels.length; i += 4) {
    const c = cell(pixels[i], pixels[i + 1], pixels[i + 2]);
    tally.counts[c]++;
    for (let a = 0; a < 3; a++) tally.sums[3 * c + a] += pixels[i + a];
  }
  return tally;
}

// The box of colours with the longest side times its weight is halved, again and again.
export function palette({ counts, sums }, size = 256) {
  const all = [];
  for (let c = 0; c < CELLS; c++) if (counts[c]) all.push(c);
  const measure = (cells) => {
    const low = [LEVELS, LEVELS, LEVELS], high = [0, 0, 0];
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
  const colors = new Uint8Array(3 * 256), lookup = new Int16Array(CELLS).fill(-1);
  boxes.forEach(({ cells, weight }, index) => {
    for (const c of cells) lookup[c] = index;
    for (let a = 0; a < 3; a++) colors[3 * index + a] = Math.round(cells.reduce((sum, c) => sum + sums[3 * c + a], 0) / weight);
  });
  return { colors, lookup, many: boxes.length };
}

// A colour that no counted picture had is shown as the nearest one that is there.
function nearest(c, { colors, many }) {
  const [r, g, b] = parts(c).map((v) => 4 * v + 2);
  let best = 0, least = Infinity;
  for (let i = 0; i < many; i++) {
    const away = (colors[3 * i] - r) ** 2 + (colors[3 * i + 1] - g) ** 2 + (colors[3 * i + 2] - b) ** 2;
    if (away < least) { least = away; best = i; }
  }
  return best;
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
  // `table`: from `palette`.
  constructor(width, height, table) {
    Object.assign(this, { width, height, table });
    const name = [...new TextEncoder().encode("NETSCAPE2.0")];
    this.parts = [Uint8Array.from([...new TextEncoder().encode("GIF89a"), ...word(width), ...word(height), 0xf7, 0, 0]), table.colors, Uint8Array.from([0x21, 0xff, 11, ...name, 3, 1, 0, 0, 0])];
  }

  // A picture (RGBA) that is shown for `hundredths` of a second.
  add(pixels, hundredths) {
    const indices = new Uint8Array(this.width * this.height);
    const { lookup } = this.table;
    for (let i = 0; i < indices.length; i++) {
      const c = cell(pixels[4 * i], pixels[4 * i + 1], pixels[4 * i + 2]);
      if (lookup[c] < 0) lookup[c] = nearest(c, this.table);
      indices[i] = lookup[c];
    }
    this.parts.push(Uint8Array.from([0x21, 0xf9, 4, 0, ...word(hundredths), 0, 0, 0x2c, 0, 0, 0, 0, ...word(this.width), ...word(this.height), 0]), Uint8Array.from(compress(indices)));
  }

  blob() { return new Blob([...this.parts, Uint8Array.from([0x3b])], { type: "image/gif" }); }
}
