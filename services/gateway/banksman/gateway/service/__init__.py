"""The service behind every interface of the gateway: requests, views, feeds, stores."""
