// Closed formulas of the paper that the page shows (`metastable.theory`).

const PARKING = 0.7475979202534115;

function logGamma(x) { // Stirling's series after a shift
  let shift = 0;
  for (; x < 12; x++) shift += Math.log(x);
  const y = 1 / (x * x);
  return (x - 0.5) * Math.log(x) - x + 0.9189385332046727 + (1 / 12 - y * (1 / 360 - y * (1 / 1260 - y * (1 / 1680 - y / 1188)))) / x - shift;
}

// Regularised incomplete beta function I_x(a, a) for x <= 1/2, by its continued fraction (Lentz).
function halfBeta(x, a) {
  if (x <= 0) return 0;
  const front = Math.exp(logGamma(2 * a) - 2 * logGamma(a) + a * Math.log(x) + a * Math.log1p(-x)) / a;
  let c = 1, d = 1 / (1 - (2 * a * x) / (a + 1)), value = d;
  for (let m = 1; m < 500; m++) {
    for (const term of [(m * (a - m) * x) / ((a + 2 * m - 1) * (a + 2 * m)), (-(a + m) * (2 * a + m) * x) / ((a + 2 * m) * (a + 2 * m + 1))]) {
      d = 1 / (1 + term * d); c = 1 + term / c; value *= c * d;
    }
    if (Math.abs(c * d - 1) < 1e-16) break;
  }
  return front * value;
}

// Normalised measure of a ball of that radius on S^(dim-1).
export function capMeasure(radius, dim) {
  const r = Math.min(radius, Math.PI);
  if (dim === 2) return r / Math.PI;
  const part = (delta) => (dim === 3 ? Math.sin(delta / 2) ** 2 : halfBeta(Math.sin(delta / 2) ** 2, (dim - 1) / 2));
  return r <= Math.PI / 2 ? part(r) : 1 - part(Math.PI - r);
}

// Expected strong centers among uniform tokens (Lemma C.1), and on the circle Renyi centers (parking constant).
export function expectedCenters(delta, dim, tokens) {
  const measure = capMeasure(delta, dim);
  const strong = measure === 0 ? tokens : -Math.expm1(tokens * Math.log1p(-measure)) / measure;
  return { strong, renyi: dim === 2 && delta < Math.PI / 2 ? (PARKING * 2 * Math.PI) / delta : null };
}

// The cluster-count law N(t), null where it says nothing.
export function clusterLaw(times, beta, dim, tokens) {
  return Array.from(times, (t) => {
    if (!(t > Math.E)) return null;
    const count = 1 / capMeasure(2 * Math.asin(Math.sqrt(Math.min(Math.log(t) / (2 * beta), 1))), dim);
    return count <= tokens ? count : null;
  });
}
