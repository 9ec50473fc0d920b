import { EventEmitter } from 'node:events'
import type { ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import t from 'tap'
import { AgentConnections } from '../../../../src/proxy/http/access/agent-connections.ts'

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

function setUp() {
  const connections = new AgentConnections(2)
  const call = (session: string, socket: FakeSocket) => {
    const response = new FakeResponse()
    connections.note(session, socket as unknown as Socket, response as unknown as ServerResponse)
    return response
  }
  return { call }
}

t.test('of more connections than an agent may have, the one longest without a call is closed', async (t) => {
  const { call } = setUp()
  const [first, second, third, other] = Array.from({ length: 4 }, () => new FakeSocket())
  call('a', first!).close()
  call('a', second!).close()
  call('b', other!).close()
  call('a', first!).close()
  call('a', third!).close()
  t.same(
    [first, second, third, other].map((socket) => socket!.destroyed),
    [false, true, false, false],
  )
})

t.test('one with a call under way stays, and one that is gone does not count', async (t) => {
  const { call } = setUp()
  const [first, second, third, fourth] = Array.from({ length: 4 }, () => new FakeSocket())
  const running = call('a', first!)
  call('a', second!).close()
  call('a', third!).close()
  t.same(
    [first, second, third].map((socket) => socket!.destroyed),
    [false, true, false],
  )
  running.close()
  third!.destroy()
  call('a', fourth!).close()
  t.notOk(first!.destroyed)
})
