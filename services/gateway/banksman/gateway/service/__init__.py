"""What every interface of the gateway does its work through: requests, views, feeds, stores."""
