/**
 * A program with a server that blocks its event loop for longer than allowed: `node planted-stall.ts MODE…`. It exits as
 * a test file with such a server does.
 */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { startChild, waitForExit } from './children.ts'
import { burnCpu } from './loop-cpu.ts'
import { allowStalls, getChildEnv, runUnwatched, startWatched } from './no-stalls.ts'
import { SHARED_STALL_LIMIT_MS } from './stall-limit.ts'

const MODES: Record<string, () => Promise<unknown>> = {
  starting: () => sendRequest(() => {}, burn),
  aside: () => sendRequest(() => runUnwatched(burn)),
  purpose: () => {
    allowStalls('the stall is planted')
    return sendRequest(burn)
  },
  waiting: () =>
    sendRequest(() =>
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2 * SHARED_STALL_LIMIT_MS),
    ),
  child: async () => {
    const child = startChild(process.execPath, [import.meta.filename, 'of-child'], {
      env: { ...process.env, ...getChildEnv() },
    })
    child.stderr.pipe(process.stderr)
    child.stdout.resume()
    await waitForExit(child)
  },
  // Twice: a process is watched from its first request on.
  'of-child': async () => {
    const { url, close } = await serve(burn)
    for (let time = 0; time < 2; time += 1) await (await fetch(url)).text()
    close()
  },
}

async function sendRequest(onRequest: () => void, onStart: () => void = () => {}): Promise<void> {
  const { url, close } = await startWatched(async () => {
    onStart()
    return await serve(onRequest)
  })
  await (await fetch(url)).text()
  close()
}

async function serve(onRequest: () => void): Promise<{ url: string; close(): void }> {
  const server = createServer((_request, response) => {
    onRequest()
    response.end()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  return {
    url: `http://127.0.0.1:${port}`,
    close: () => {
      // Delayed until the last interval has been measured.
      setTimeout(() => {
        server.close()
        server.closeAllConnections()
      }, 50)
    },
  }
}

function burn(): void {
  burnCpu(1.5 * SHARED_STALL_LIMIT_MS)
}

for (const mode of process.argv.slice(2)) await MODES[mode]!()
