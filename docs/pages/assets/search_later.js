// The index of the search is larger than a page, so it is loaded when the search is first used.
// Material asks for it while a page loads; this request waits until the search has the focus.
(function () {
  const { open, send } = XMLHttpRequest.prototype;
  XMLHttpRequest.prototype.open = function (method, url, ...rest) {
    this.isIndex = String(url).endsWith("/search_index.json");
    return open.call(this, method, url, ...rest);
  };
  XMLHttpRequest.prototype.send = function (...args) {
    if (!this.isIndex) return send.apply(this, args);
    const later = (event) => {
      if (!event.target.closest(".md-search")) return;
      document.removeEventListener("focusin", later);
      send.apply(this, args);
    };
    document.addEventListener("focusin", later);
  };
}());
