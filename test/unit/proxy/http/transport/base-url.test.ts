import { networkInterfaces } from 'node:os'
import t from 'tap'
import { formatBaseUrl, getReachableUrl } from '../../../../../src/proxy/http/transport/base-url.ts'

t.test('a base URL has the address, the port and the base path', async (t) => {
  t.equal(formatBaseUrl({ host: '127.0.0.1', port: 8080 }), 'http://127.0.0.1:8080')
  t.equal(
    formatBaseUrl({ host: '::1', port: 8443, secure: true, basePath: '/llm' }),
    'https://[::1]:8443/llm',
    'an IPv6 address is in brackets',
  )
})

t.test(
  "other nodes reach a server that listens on all addresses at one of this machine's addresses",
  async (t) => {
    const external = Object.values(networkInterfaces())
      .flatMap((all = []) => all)
      .filter(({ internal, family }) => !internal && family === 'IPv4')
      .map(({ address }) => address)
    for (const any of ['0.0.0.0', '[::]']) {
      const { hostname, port, pathname } = new URL(getReachableUrl(`http://${any}:8080/llm`))
      t.ok([...external, '127.0.0.1'].includes(hostname), hostname)
      t.not(hostname, '0.0.0.0')
      t.strictSame([port, pathname], ['8080', '/llm'])
    }
    const address = (family: string, address: string, internal = false) => ({ family, address, internal })
    const [loopback, linkLocal] = [address('IPv6', '::1', true), address('IPv6', 'fe80::1')]
    const ipv6 = { lo: [loopback], eth0: [linkLocal, address('IPv6', '2001:db8::7')] } as never
    t.equal(getReachableUrl('http://[::]:8080', ipv6), 'http://[2001:db8::7]:8080/', 'without IPv4')
    t.equal(getReachableUrl('http://0.0.0.0:8080', ipv6), 'http://127.0.0.1:8080/', 'it listens on IPv4 only')
    const alone = { lo: [loopback], eth0: [linkLocal] } as never
    t.equal(getReachableUrl('http://[::]:8080', alone), 'http://127.0.0.1:8080/')
    t.equal(getReachableUrl('http://10.1.2.3:8080/'), 'http://10.1.2.3:8080/', 'a chosen address is kept')
  },
)
