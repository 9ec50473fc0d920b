/** A fake Harbor server, written from the description of its API alone. */
import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Test } from 'tap'

interface RunSubmission {
  path: string
  headers: IncomingHttpHeaders
  /** The form's fields in order. */
  fields: string[]
  // biome-ignore lint/suspicious/noExplicitAny: tests inspect metadata of any shape
  metadata: any
  archive: Buffer
  archiveType: string
}

/**
 * Handles a submitted run.
 * @returns the response's status and body; a promise that never resolves is a server that hangs
 */
type RunScript = (run: RunSubmission) => Promise<{ status?: number; body: unknown }>

interface HarborServer {
  url: string
  runs: RunSubmission[]
  /** The largest number of concurrent runs. */
  maxRunning: number
  /** Resolves when a client disconnects before it receives a response. */
  clientDisconnected: Promise<void>
}

/** Starts the server on a free port; it stops when the test ends. */
export async function startHarborServer(t: Test, script: RunScript): Promise<HarborServer> {
  const { promise: clientDisconnected, resolve: onDisconnected } = Promise.withResolvers<void>()
  const harbor: HarborServer = { url: '', runs: [], maxRunning: 0, clientDisconnected }
  let running = 0
  const server = createServer(async (request, response) => {
    running += 1
    harbor.maxRunning = Math.max(harbor.maxRunning, running)
    response.once('close', () => {
      running -= 1
      if (!response.writableFinished) onDisconnected()
    })
    const body = Buffer.concat(await request.toArray())
    const form = await new Response(new Uint8Array(body), {
      headers: { 'content-type': request.headers['content-type'] ?? '' },
    }).formData()
    const archive = form.get('task_archive') as File
    const run = {
      path: `${request.method} ${request.url}`,
      headers: request.headers,
      fields: [...form.keys()],
      metadata: JSON.parse(String(form.get('metadata'))),
      archive: Buffer.from(await archive.arrayBuffer()),
      archiveType: `${archive.name} ${archive.type}`,
    }
    harbor.runs.push(run)
    const { status = 200, body: reply } = await script(run)
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(reply))
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  harbor.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  t.teardown(async () => {
    server.closeAllConnections()
    server.close()
    await once(server, 'close')
  })
  return harbor
}
