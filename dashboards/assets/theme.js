// The theme, set before the first paint: the reader's choice, else the system's.
(function () {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");

  function stored() {
    try { return localStorage.getItem("ddpdoctor-theme"); } catch (error) { return null; }
  }

  function current() {
    const choice = stored();
    if (choice === "dark" || choice === "light") return choice;
    return system.matches ? "dark" : "light";
  }

  function apply() {
    root.dataset.theme = current();
    return root.dataset.theme;
  }

  function toggle() {
    try { localStorage.setItem("ddpdoctor-theme", current() === "dark" ? "light" : "dark"); } catch (error) { /* private window */ }
    return apply();
  }

  apply();
  system.addEventListener("change", () => {
    const theme = apply();
    if (window.dash_clientside.set_props) window.dash_clientside.set_props("theme", { data: theme });
  });

  // The current page in the header, once Dash has put it there.
  new MutationObserver((changes, observer) => {
    const links = document.querySelectorAll("a.nav");
    if (!links.length) return;
    observer.disconnect();
    for (const link of links) {
      if (link.pathname.replace(/\/$/, "") === location.pathname.replace(/\/$/, "")) link.setAttribute("aria-current", "page");
    }
  }).observe(root, { childList: true, subtree: true });

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    ddpdoctor: {
      theme: (clicks) => (clicks ? toggle() : apply()),
      // A cell of the heat map, opened in the timeline.
      openCell: (click) => {
        if (!click || !click.points.length) return window.dash_clientside.no_update;
        const point = click.points[0];
        const link = document.getElementById("nav-timeline").getAttribute("href");
        return `${link}?rank=${point.y}&sync=${point.x}`;
      },
    },
  });
})();
