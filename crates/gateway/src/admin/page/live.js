// Updates the page without the flicker of a reload. Without scripts a meta tag reloads it.
const live = document.getElementById("live");
const scrollAreas = () => [...document.querySelectorAll(".scroll")];
async function renew() {
  // A hidden page, or one with a selection, is not updated.
  if (!document.hidden && getSelection().isCollapsed) {
    try {
      const response = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (!response.ok) throw new Error(response.status);
      const text = await response.text();
      // The new head is skipped: the policy of this page would reject the nonce of its style.
      const main = text.slice(text.indexOf("<main>"), text.indexOf("</main>"));
      const fresh = new DOMParser().parseFromString(main, "text/html");
      const scrollPositions = scrollAreas().map((table) => table.scrollLeft);
      document.querySelector("main").replaceWith(fresh.querySelector("main"));
      scrollAreas().forEach((table, index) => { table.scrollLeft = scrollPositions[index] ?? 0; });
      document.body.classList.remove("silent");
      live.textContent = "live, every 2 s";
    } catch {
      document.body.classList.add("silent");
      if (!live.textContent.startsWith("no response")) {
        live.textContent = "no response since " + new Date().toLocaleTimeString();
      }
    }
  }
  setTimeout(renew, 2000);
}
live.textContent = "live, every 2 s";
setTimeout(renew, 2000);
