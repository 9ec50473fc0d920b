/** Serves the page of the inspector. Its static files contain no data and need no key; the API that they call does. */
import { createHash } from 'node:crypto'
import { gzipSync } from 'node:zlib'
import type { FastifyPluginCallback, FastifyReply, FastifyRequest } from 'fastify'
import { ICON, readPageSource } from './page-source.ts'

/** Allows only the files of the page and the API of the same origin, and no inline script. */
export const CONTENT_SECURITY_POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; " +
  "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

const HTML = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>llm-proxy</title>
<link rel="icon" href="ui/icon.svg">
<link rel="stylesheet" href="ui/app.css">
<script type="module" src="ui/app.js"></script>
<body><div id="app"></div>
`

interface PageFile {
  path: string
  type: string
  plain: Buffer
  gzipped: Buffer
  etag: string
}

export const uiRoutes: FastifyPluginCallback = (app, _options, done) => {
  let files: ReadonlyMap<string, PageFile> | undefined
  for (const path of ['/ui', '/ui/app.js', '/ui/app.css', '/ui/icon.svg']) {
    app.get(path, { schema: { hide: true } }, async (request, reply) => {
      files ??= readPage()
      return send(files.get(path)!, request, reply)
    })
  }
  // The page refers to its files by relative URLs, which a trailing slash would change.
  app.get('/ui/', { schema: { hide: true } }, (_request, reply) => reply.redirect('../ui'))
  app.get('/', { schema: { hide: true } }, (_request, reply) => reply.redirect(`${app.prefix}/ui`))
  done()
}

function readPage(): ReadonlyMap<string, PageFile> {
  const { script, style } = readPageSource()
  return new Map(
    [
      createPageFile('/ui', 'text/html', HTML),
      createPageFile('/ui/app.js', 'text/javascript', script),
      createPageFile('/ui/app.css', 'text/css', style),
      createPageFile('/ui/icon.svg', 'image/svg+xml', ICON),
    ].map((file) => [file.path, file]),
  )
}

function createPageFile(path: string, type: string, text: string): PageFile {
  const plain = Buffer.from(text)
  const hash = createHash('sha256').update(plain).digest('base64url').slice(0, 22)
  return {
    path,
    type: `${type}; charset=utf-8`,
    plain,
    gzipped: gzipSync(plain, { level: 9 }),
    etag: `"${hash}"`,
  }
}

function send(file: PageFile, { headers }: FastifyRequest, reply: FastifyReply): FastifyReply {
  void reply.headers({
    etag: file.etag,
    vary: 'accept-encoding',
    'cache-control': 'no-cache',
    'content-security-policy': CONTENT_SECURITY_POLICY,
    'x-content-type-options': 'nosniff',
    'referrer-policy': 'no-referrer',
  })
  if (headers['if-none-match'] === file.etag) return reply.code(304).send()
  void reply.type(file.type)
  const takesGzip = /\bgzip\b/.test(headers['accept-encoding'] ?? '')
  return takesGzip ? reply.header('content-encoding', 'gzip').send(file.gzipped) : reply.send(file.plain)
}
