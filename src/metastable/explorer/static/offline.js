// The service worker of an exported site: keeps the page for times without a network. The export writes the first two lines.
const VERSION = "";
const FILES = [];

const NAME = `metastable-${VERSION}`;
const others = (names) => names.filter((name) => name.startsWith("metastable-") && name !== NAME);

self.addEventListener("install", (event) => event.waitUntil(
  caches.open(NAME).then((cache) => cache.addAll(FILES)).then(() => self.skipWaiting()),
));
self.addEventListener("activate", (event) => event.waitUntil(
  caches.keys().then((names) => Promise.all(others(names).map((name) => caches.delete(name)))).then(() => self.clients.claim()),
));
self.addEventListener("fetch", (event) => {
  if (event.request.method !== "GET") return;
  event.respondWith(caches.open(NAME).then((cache) => cache.match(event.request, { ignoreSearch: true })).then((kept) => kept ?? fetch(event.request)));
});
