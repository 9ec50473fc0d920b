/**
 * Accounting of callers' connections and requests: the limits that reject them, and the release of every
 * charge.
 */
import { EventEmitter } from 'node:events'
import type { IncomingMessage, ServerResponse } from 'node:http'
import fc from 'fast-check'
import t from 'tap'
import { type AccountLimits, Accounts } from '../../../../../src/proxy/http/access/accounts.ts'

class FakeSocket extends EventEmitter {
  destroyed = false
  destroy(): void {
    if (this.destroyed) return
    this.destroyed = true
    this.emit('close')
  }
}

class FakeResponse extends EventEmitter {
  closed = false
  close(): void {
    this.closed = true
    this.emit('close')
  }
}

class FakeRequest extends EventEmitter {
  readonly socket: FakeSocket
  readonly headers = { 'content-length': '1' }
  constructor(socket = new FakeSocket()) {
    super()
    this.socket = socket
  }
}

const BODY_LIMIT = 100

function setUp(limits: AccountLimits = {}) {
  const accounts = new Accounts(BODY_LIMIT, limits)
  const sendRequest = (name: string, socket?: FakeSocket) => {
    const request = new FakeRequest(socket)
    const response = new FakeResponse()
    const message = request as unknown as IncomingMessage
    const reply = response as unknown as ServerResponse
    const charge = accounts.charge(name, name.startsWith('agent'), message, reply)
    return { charge, request, message, close: () => response.close() }
  }
  const sendAgentRequest = (session: string, socket: FakeSocket) => sendRequest(`agent ${session}`, socket)
  return { accounts, sendRequest, sendAgentRequest }
}

t.test("above an agent's connection limit, the one that has been idle longest is closed", async (t) => {
  const { sendAgentRequest } = setUp({ connections: 2, completions: 1 })
  const [first, second, third, other] = Array.from({ length: 4 }, () => new FakeSocket())
  sendAgentRequest('a', first!).close()
  sendAgentRequest('a', second!).close()
  sendAgentRequest('b', other!).close()
  sendAgentRequest('a', first!).close()
  sendAgentRequest('a', third!).close()
  t.same(
    [first, second, third, other].map((socket) => socket!.destroyed),
    [false, true, false, false],
  )
})

t.test('a connection with a running request stays, and a closed one does not count', async (t) => {
  const { sendAgentRequest } = setUp({ connections: 2, completions: 1 })
  const [first, second, third, fourth] = Array.from({ length: 4 }, () => new FakeSocket())
  const running = sendAgentRequest('a', first!)
  sendAgentRequest('a', second!).close()
  sendAgentRequest('a', third!).close()
  t.same(
    [first, second, third].map((socket) => socket!.destroyed),
    [false, true, false],
  )
  running.close()
  third!.destroy()
  sendAgentRequest('a', fourth!).close()
  t.notOk(first!.destroyed)
})

t.test('a connection that a load balancer shares among agents counts for the latest of them', async (t) => {
  const { accounts, sendAgentRequest } = setUp()
  const shared = new FakeSocket()
  for (let agent = 0; agent < 50; agent += 1) sendAgentRequest(`a${agent}`, shared).close()
  t.equal(accounts.count, 1, 'the others have no state')
  t.equal(shared.listenerCount('close'), 1)
  shared.destroy()
  t.equal(accounts.count, 0)
})

t.test('an agent is rejected for its own requests and memory, and the error names the limit', async (t) => {
  const { sendRequest } = setUp({ completions: 3, memoryBytes: 400 })
  const [first, second, other] = [sendRequest('agent a'), sendRequest('agent a'), sendRequest('agent b')]
  first.charge.addCompletions(2)
  t.throws(() => second.charge.addCompletions(2), {
    code: 'too_many_calls',
    message: /too many requests in flight \(at most 3\)/,
    retryAfterS: 1,
  })
  second.charge.addCompletions(1)
  other.charge.addCompletions(3)
  first.charge.setMemory(90)
  t.throws(() => second.charge.setMemory(20), { code: 'too_many_calls', message: /memory/, retryAfterS: 1 })
  other.charge.setMemory(100)
  const trainer = sendRequest('session c')
  trainer.charge.addCompletions(1_000)
  trainer.charge.setMemory(210)
  t.throws(() => second.charge.setMemory(1), { code: 'queue_full', message: /memory/ })
  first.close()
  second.charge.addCompletions(2)
  second.charge.setMemory(90)
  t.end()
})

t.test('a charge after the end of its request has no effect', async (t) => {
  const { accounts, sendRequest } = setUp()
  const { charge, close, request } = sendRequest('agent a')
  close()
  request.socket.destroy()
  charge.addCompletions(5)
  charge.setMemory(500)
  t.equal(accounts.count, 0)
  t.equal(accounts.memoryBytes, 0)
})

t.test('above the budget, the largest body of the caller with the most bytes is rejected', async (t) => {
  const { sendRequest } = setUp({ arrivingBytes: 1_000 })
  const rejected: string[] = []
  const body = (name: string, bytes: number, what = name) => {
    const { charge, message, request } = sendRequest(name)
    charge.watch(message)
    request.on('error', ({ code }) => rejected.push(`${what}: ${code}`))
    request.emit('data', Buffer.alloc(bytes))
    return request
  }
  for (let each = 0; each < 8; each += 1) body('agent greedy', 60 + each, `greedy ${60 + each}`)
  const large = body('session honest', 100)
  for (let each = 0; each < 5; each += 1) body(`session ${each}`, 90)
  t.strictSame(rejected, ['greedy 67: queue_full'])
  large.emit('end')
  body('session late', 100)
  t.equal(rejected.length, 1, 'finished requests free their share')
})

t.test('for any sequence of events, every charge is released', async () => {
  const steps = fc.array(
    fc.record({
      name: fc.constantFrom('agent a', 'agent b', 'session c'),
      amount: fc.nat(60),
      end: fc.nat(4),
    }),
  )
  fc.assert(
    fc.property(steps, (list) => {
      const { accounts, sendRequest } = setUp({ completions: 4, memoryBytes: 100, arrivingBytes: 100 })
      const open: ReturnType<typeof sendRequest>[] = []
      for (const { name, amount, end } of list) {
        const sent = sendRequest(name)
        open.push(sent)
        sent.request.on('error', () => {})
        sent.charge.watch(sent.message)
        sent.request.emit('data', Buffer.alloc(amount))
        for (const charge of [
          () => sent.charge.addCompletions(amount % 5),
          () => sent.charge.setMemory(amount),
        ]) {
          try {
            charge()
          } catch {}
        }
        const { close, request } = open[end % open.length]!
        close()
        request.emit('close')
      }
      for (const { close, request } of open) {
        close()
        request.emit('close')
        request.socket.destroy()
      }
      return accounts.count === 0 && accounts.memoryBytes === 0
    }),
  )
})
