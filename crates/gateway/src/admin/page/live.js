// Keeps the page up to date without the flicker of a reload; without scripts a meta tag reloads it.
const live = document.getElementById("live");
const wide = () => [...document.querySelectorAll(".scroll")];
async function renew() {
  // A page that nobody sees, or of which somebody is copying a part, stays as it is.
  if (!document.hidden && getSelection().isCollapsed) {
    try {
      const answer = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (!answer.ok) throw new Error(answer.status);
      const text = await answer.text();
      // Without the head: its style has another nonce, which this page's policy would refuse.
      const main = text.slice(text.indexOf("<main>"), text.indexOf("</main>"));
      const fresh = new DOMParser().parseFromString(main, "text/html");
      const places = wide().map((table) => table.scrollLeft);
      document.querySelector("main").replaceWith(fresh.querySelector("main"));
      wide().forEach((table, at) => { table.scrollLeft = places[at] ?? 0; });
      document.body.classList.remove("silent");
      live.textContent = "live, every 2 s";
    } catch {
      document.body.classList.add("silent");
      if (!live.textContent.startsWith("no answer")) {
        live.textContent = "no answer since " + new Date().toLocaleTimeString();
      }
    }
  }
  setTimeout(renew, 2000);
}
live.textContent = "live, every 2 s";
setTimeout(renew, 2000);
