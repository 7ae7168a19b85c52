"""Payloads in text, outputs and metadata that would run or load something in a browser.

Each calls ``hit(NAME)`` or loads ``SERVER/NAME`` if it succeeds; `test_pages` looks for both.
"""

RUN = "(window.hits=window.hits||[]).push(&quot;NAME&quot;);fetch(&quot;SERVER/NAME&quot;)"
SCRIPT = "(window.hits=window.hits||[]).push('NAME');fetch('SERVER/NAME')"
IN_TEXT = {
    "script": f"<script>{SCRIPT}</script>",
    "picture": f'<img src="x" onerror="{RUN}">',
    "picture-from-elsewhere": '![](SERVER/NAME.png) <img src="SERVER/NAME"> <img srcset="SERVER/NAME 1x">',
    "drawing": f'<svg onload="{RUN}"><script>{SCRIPT}</script><animate onbegin="{RUN}" attributeName="x"/></svg>',
    "frame": f'<iframe src="SERVER/NAME"></iframe><iframe srcdoc="<script>parent.{SCRIPT[1:]}</script>"></iframe>',
    "link": f"[press](javascript:{RUN.replace(';', '%3B')}) <a id='press-NAME' href='javascript:{RUN}'>press</a>",
    "link-in-disguise": f"<a id='press-NAME' href=' &#1;java&#x0A;script:{RUN}'>press</a>",
    "link-of-data": "<a id='press-NAME' href='data:text/html,<script>fetch(\"SERVER/NAME\")</script>'>press</a>",
    "style": "<style>@import 'SERVER/NAME'; body { background: url(SERVER/NAME) }</style>",
    "style-of-one": "<p style='background: url(SERVER/NAME)'>x</p>",
    "form": f"<form action='SERVER/NAME'><button id='press-NAME' formaction='javascript:{RUN}'>press</button></form>",
    "refresh": "<meta http-equiv='refresh' content='0; url=SERVER/NAME'>",
    "base-and-link": "<base href='SERVER/'><link rel='stylesheet' href='SERVER/NAME'><link rel='preload' href='NAME'>",
    "object": "<object data='SERVER/NAME'></object><embed src='SERVER/NAME'><applet code='NAME'></applet>",
    "media": f"<video src='SERVER/NAME' onerror='{RUN}'></video><audio><source src='SERVER/NAME'></audio>",
    "focus": f"<input autofocus onfocus='{RUN}'><details open ontoggle='{RUN}'>x</details>",
    "parser": f"<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror={SCRIPT}&gt;'>",
    "noscript": f"<noscript><p title='</noscript><img src=x onerror={RUN}>'>x</p></noscript>",
    "end-of-the-page": f"</div></body></html><script>{SCRIPT}</script>",
    "template": f"{{{{ config }}}} {{% raw %}}<template><script>{SCRIPT}</script></template><xmp>",
    "mathjax": r"$$\href{javascript:fetch('SERVER/NAME')}{x}$$ \(\unicode{<img src=x onerror=fetch('SERVER/NAME')>}\)",
}
IN_OUTPUTS = {
    "output-html": {"text/html": f"<img src=x onerror='{RUN}'><script>{SCRIPT}</script>"},
    "output-javascript": {"application/javascript": SCRIPT, "text/plain": "x"},
    "output-svg": {"image/svg+xml": f"<svg xmlns='http://www.w3.org/2000/svg' onload='{RUN}'></svg>"},
    "output-markdown": {"text/markdown": f"<img src=x onerror='{RUN}'>"},
    "output-latex": {"text/latex": f"$x$<script>{SCRIPT}</script>"},
    "output-png": {"image/png": f"x\" onerror='{RUN}' y=\""},
    "output-widget": {"application/vnd.jupyter.widget-view+json": {"model_id": f"<script>{SCRIPT}</script>"}},
}
IN_METADATA = {
    "width-of-a-picture": {"image/png": {"width": f'1" onerror="{RUN}" x="', "height": f"'><script>{SCRIPT}</script>"}},
    "name-of-a-file": {"filenames": {"image/png": f"x' onerror='{RUN}"}},
}
IN_WORDS = {  # of an error, and of what is printed
    "error": f"raise type('<img src=x onerror={SCRIPT}>', (Exception,), {{}})('<script>{SCRIPT}</script>')".replace(
        "'NAME'", "NAME"
    ),
    "colours": f"print('\\x1b[31m<script>{SCRIPT}</script>\\x1b]8;;javascript:x\\x07press')".replace("'NAME'", "NAME"),
}
