// Whom each token feels (Q = K = V = I): lists that leave out who is too far away. They are good for a region of states, and are made
// again when the tokens leave it, so that the sums over pairs are short and have no branches in them.

export const SLACK = 2; // logits by which a list reaches further than it must

export class Sight {
  // `ranges`: whom each token may see (ends of intervals); `least`: the logit beta (<x, y> - 1) from which on a token is not felt.
  constructor(tokens, dim, ranges, beta, least) {
    Object.assign(this, { tokens, dim, ranges, beta });
    this.least = (least - SLACK) / beta;
    // A cosine changes by no more than both tokens' moves together. Where everybody feels everybody the lists are good for ever.
    this.reach = this.least < -2 ? Infinity : (SLACK / (2 * beta)) ** 2;
    this.who = null; // token k feels who[first[k]] .. who[first[k + 1] - 1], and itself
    this.first = new Int32Array(tokens + 1);
    this.made = null; // the state that the lists were made for
  }

  // Make the lists good for the directions x (n x d).
  look(x) {
    if (this.made && this.holds(x)) return;
    this.who ??= new Uint16Array(this.ranges.reduce((sum, range) => sum + range.reduce((part, end, q) => part + (q % 2 ? end : -end), 0), 0));
    this.made = x.slice();
    let end = 0;
    for (let k = 0; k < this.tokens; k++) {
      this.first[k] = end;
      for (let q = 0, range = this.ranges[k]; q < range.length; q += 2) end = this.see(x, k, range[q], range[q + 1], end);
    }
    this.first[this.tokens] = end;
  }

  // Nobody has left the region.
  holds(x) {
    const { dim, made, reach } = this;
    if (reach === Infinity) return true;
    for (let at = 0; at < x.length; at += dim) {
      let moved = 0;
      for (let a = at; a < at + dim; a++) { const d = x[a] - made[a]; moved += d * d; }
      if (!(moved <= reach)) return false;
    }
    return true;
  }

  // Those of from .. to - 1 whom token k feels, into the lists from `end` on.
  see(x, k, from, to, end) {
    const { dim, who, least } = this, at = k * dim, a = x[at], b = x[at + 1];
    for (let j = from, there = from * dim; j < to; j++, there += dim) {
      let dot = a * x[there] + b * x[there + 1] - 1;
      for (let i = 2; i < dim; i++) dot += x[at + i] * x[there + i];
      if (j === k || dot < least) continue;
      who[end++] = j;
    }
    return end;
  }
}
