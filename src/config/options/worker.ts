/** Options of a worker, which dials a proxy. */
import type { CommandSpec, ConfigOf } from '../option.ts'
import {
  engineApiKey,
  engineKind,
  engineSessionHeader,
  logLevel,
  shutdownGraceMs,
  tlsCa,
  workerKeys,
} from './shared.ts'

export const WORKER = {
  name: 'worker',
  summary: 'Dial a relay-mode proxy and serve its calls with engines that this machine reaches',
  envPrefix: 'LLM_PROXY_',
  options: {
    proxyUrls: {
      flag: 'proxy-url',
      type: 'dialUrl',
      repeatable: true,
      env: ['PROXY_SERVER_URL'],
      group: 'Proxy',
      help:
        'Base URL of a proxy in relay mode; may be given several times. dns+http://NAME:PORT stands for a proxy at each ' +
        'address that the name has, which are looked up again every 5 s',
    },
    workerKeys: {
      ...workerKeys,
      group: 'Proxy',
      help:
        'Key that the proxies ask for. Of several the next is tried when one is refused; @file reads them from a file, ' +
        'one a line. On the command line other users of the machine can read it',
    },
    tlsCa: { ...tlsCa, group: 'Proxy' },
    workerId: {
      flag: 'worker-id',
      type: 'text',
      group: 'Proxy',
      help: 'Name of this worker, the same after each restart; without it the host name and process id',
    },
    engineUrls: {
      flag: 'engine-url',
      type: 'url',
      repeatable: true,
      group: 'Engines',
      help: 'Base URL of an engine; may be given several times',
    },
    engineKind,
    engineApiKey,
    engineSessionHeader,
    maxConcurrency: {
      flag: 'max-concurrency',
      type: 'integer',
      min: '1',
      default: '1024',
      group: 'Engines',
      help: 'Calls that one engine serves at once',
    },
    shutdownGraceMs,
    logLevel,
  },
} as const satisfies CommandSpec

export type WorkerConfig = ConfigOf<typeof WORKER>
