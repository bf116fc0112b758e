// Keeps the page up to date without the flicker of a reload; without scripts a meta tag reloads it.
const live = document.getElementById("live");
async function renew() {
  if (!document.hidden) {
    try {
      const answer = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (!answer.ok) throw new Error(answer.status);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      document.querySelector("main").replaceWith(fresh.querySelector("main"));
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
